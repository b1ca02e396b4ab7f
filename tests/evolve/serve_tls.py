"""A model behind TLS: says its port, answers every request alike, and writes down what it was asked."""
import http.server, json, ssl, sys, threading

ANSWER = json.dumps({
    "choices": [{"message": {"content": "def add(a, b):\n    return a + b\n"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1},
}).encode()


class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with open("asked", "a") as file:
            file.write(f"{self.requestline}\n{self.headers}")
        self.send_response(200)
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        pass  # a client that does not trust us goes away


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("server.pem", "server.key")
server = Server(("127.0.0.1", 0), Model)
server.socket = context.wrap_socket(server.socket, server_side=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
