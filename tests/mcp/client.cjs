// The tools as the npm client of MCP calls them: node client.cjs stdio|http
const assert = require("node:assert");
const { createRequire } = require("node:module");
const load = createRequire(process.env.BELLJAR_TEST_NODE + "/");
const { Client } = load("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = load("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = load("@modelcontextprotocol/sdk/client/streamableHttp.js");

function transport() {
  if (process.argv[2] === "stdio") {
    return new StdioClientTransport({ command: process.env.BELLJAR_BIN, args: ["mcp"], env: process.env });
  }
  const headers = { Authorization: `Bearer ${process.env.MCP_TOKEN}` };
  return new StreamableHTTPClientTransport(new URL(process.env.MCP_URL), { requestInit: { headers } });
}

const words = (result) => result.content.filter((one) => one.type === "text").map((one) => one.text).join("\n");

async function main() {
  const client = new Client({ name: "test", version: "1" });
  await client.connect(transport());
  assert.strictEqual(client.getServerVersion().name, "belljar");
  const { tools } = await client.listTools();
  assert.strictEqual(tools.length, 12);
  const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options);

  const fine = await call("run_code", { code: "print(6 * 7)" });
  assert.ok(!fine.isError && words(fine) === "42" && fine.structuredContent.stdout === "42\n");
  const wrong = await call("run_code", { code: "1 / 0" });
  assert.ok(wrong.isError && words(wrong).includes("ZeroDivisionError"));
  const mistake = await call("run_code", { code: "x", colour: "red" });
  assert.ok(mistake.isError && words(mistake).includes("colour"));

  const seen = [];
  const code = "import time\nfor n in range(5):\n    print('step', n, flush=True)\n    time.sleep(0.15)";
  await call("run_code", { code }, { onprogress: (told) => seen.push(told) });
  assert.ok(seen.length >= 2 && seen.every((one, at) => at === 0 || one.progress > seen[at - 1].progress));

  const { structuredContent: made } = await call("create_sandbox", {});
  const sandbox = made.sandbox;
  try {
    const stop = new AbortController();
    const beat = { sandbox, command: "while :; do date +%N > beat; sleep 0.02; done", timeout_s: 100 };
    const running = call("run_command", beat, { signal: stop.signal }).then(() => "ended", () => "cancelled");
    const beats = async () => {
      const told = await call("run_command", { sandbox, command: "cat beat; sleep 0.3; cat beat" });
      const [first, second] = told.structuredContent.stdout.split("\n");
      return Boolean(second) && first !== second;
    };
    while (!(await beats()));
    stop.abort("enough");
    assert.strictEqual(await running, "cancelled");
    while (await beats());
    const png = "class P:\n    def _repr_png_(self):\n        return b'\\x89PNG\\r\\n\\x1a\\n123'\nP()";
    const shown = await call("run_code", { sandbox, code: png });
    const picture = shown.content.find((one) => one.type === "image");
    assert.strictEqual(Buffer.from(picture.data, "base64").toString("latin1"), "\x89PNG\r\n\x1a\n123");
    const { contents } = await client.readResource({ uri: "belljar://guide" });
    assert.ok(contents[0].text.includes("create_sandbox"));
  } finally {
    await call("remove_sandbox", { sandbox });
  }
  await client.close();
  console.log("all held");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
