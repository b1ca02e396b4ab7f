//! A way out leads to what it names, and nowhere else.

use std::io::Read;
use std::net::{TcpListener, TcpStream};

use belljar_tests::{Layer, Level, Sandbox};

#[test]
fn way_out_to_one_name_is_none_to_the_host() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    assert!(TcpStream::connect(address).is_ok(), "the host reaches it");
    listener.accept().expect("the control's");
    listener.set_nonblocking(true).expect("a listener");
    let code = format!(
        "import socket
for host in '127.0.0.1', '198.18.0.1', '198.18.1.0':
    try: socket.create_connection((host, {0}), 5); print('reached')
    except OSError as error: print(error.errno)
s = socket.create_connection(('198.18.0.1', 3128), 5)
s.sendall(b'CONNECT 127.0.0.1:{0} HTTP/1.1\\r\\nHost: 127.0.0.1:{0}\\r\\n\\r\\n')
print(s.recv(12))",
        address.port()
    );
    for level in [Level::Standard, Level::Strict] {
        let options = ["--egress", "belljar.invalid", "--allow-missing", "uid_per_run"];
        let outcome = Sandbox::at(level).alone().with(options).run_python(&code);
        assert_eq!(outcome.stdout, "111\n111\n111\nb'HTTP/1.1 403'\n", "{outcome:#?}");
        let found = outcome.receipt.layers.iter().find(|layer| layer.name == Layer::Egress);
        assert!(found.is_some_and(|layer| layer.verified), "{outcome:#?}");
        assert!(listener.accept().map(|(mut stream, _)| stream.read(&mut [0]).ok()).is_err());
    }
}
