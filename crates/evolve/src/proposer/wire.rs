//! What the endpoints say and hear. Only what we need of it: their documentation has more.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Endpoint;
use crate::step::Prompt;

/// Anthropic's endpoint wants to be told how much it may say.
const ANTHROPIC_MAX_TOKENS: u32 = 8192;
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// The ways of speaking that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Openai,
    Anthropic,
    Ollama,
}

/// What an endpoint answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    pub text: String,
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// It had more to say than it was allowed to.
    pub cut: bool,
}

/// Why an answer is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// It is not what the endpoint promises.
    Malformed(String),
    /// It ended before it was whole.
    HungUp,
    /// It is an error that the endpoint tells in the middle of a stream.
    Told(String),
}

impl Dialect {
    pub(super) const fn default_url(self) -> &'static str {
        match self {
            Self::Openai => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com",
            Self::Ollama => "http://127.0.0.1:11434",
        }
    }

    pub(super) const fn default_key_env(self) -> &'static str {
        match self {
            Self::Openai => "OPENAI_API_KEY",
            Self::Anthropic => "ANTHROPIC_API_KEY",
            Self::Ollama => "",
        }
    }

    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Openai => "/chat/completions",
            Self::Anthropic => "/v1/messages",
            Self::Ollama => "/api/chat",
        }
    }

    /// The headers that carry a key, and those that always go along.
    pub(super) fn headers(self, key: Option<&str>) -> Vec<(&'static str, String)> {
        match (self, key) {
            (Self::Anthropic, Some(key)) => vec![
                ("x-api-key", key.to_owned()),
                ("anthropic-version", ANTHROPIC_VERSION.to_owned()),
            ],
            (Self::Anthropic, None) => vec![("anthropic-version", ANTHROPIC_VERSION.to_owned())],
            (Self::Openai | Self::Ollama, Some(key)) => {
                vec![("authorization", format!("Bearer {key}"))]
            }
            (Self::Openai | Self::Ollama, None) => Vec::new(),
        }
    }

    pub(super) fn body(self, endpoint: &Endpoint, prompt: &Prompt, seed: u64) -> Value {
        let Endpoint { model, stream, temperature, max_tokens, extra, .. } = endpoint;
        let user = json!({ "role": "user", "content": prompt.user });
        let system = json!({ "role": "system", "content": prompt.system });
        // Endpoints read it as a signed number.
        let seed = seed >> 33;
        let mut body = match self {
            Self::Openai => {
                let mut body =
                    json!({ "model": model, "messages": [system, user], "stream": stream });
                if *stream {
                    body["stream_options"] = json!({ "include_usage": true });
                }
                body
            }
            Self::Anthropic => json!({
                "model": model,
                "system": prompt.system,
                "messages": [user],
                "stream": stream,
                "max_tokens": max_tokens.unwrap_or(ANTHROPIC_MAX_TOKENS),
            }),
            Self::Ollama => json!({
                "model": model,
                "messages": [system, user],
                "stream": stream,
                "options": { "seed": seed },
            }),
        };
        let options = if self == Self::Ollama { &mut body["options"] } else { &mut body };
        if let Some(temperature) = temperature {
            options["temperature"] = json!(temperature);
        }
        if let Some(most) = max_tokens {
            options[if self == Self::Ollama { "num_predict" } else { "max_tokens" }] = json!(most);
        }
        for (name, value) in extra {
            body[name] = value.clone();
        }
        body
    }

    /// Reads a whole answer.
    pub(super) fn read(self, bytes: &[u8]) -> Result<Reply, Bad> {
        match self {
            Self::Openai => openai(parse(bytes)?),
            Self::Anthropic => Ok(anthropic(parse(bytes)?)),
            Self::Ollama => ollama(&[parse(bytes)?]),
        }
    }

    /// Whether an answer that was to come in pieces came whole: not every server that speaks so can do otherwise.
    pub(super) fn is_whole(self, bytes: &[u8]) -> bool {
        let begins = bytes.trim_ascii_start().first();
        self != Self::Ollama && begins == Some(&b'{') // a stream begins with the name of a field
    }

    /// Reads an answer that came in pieces.
    pub(super) fn read_stream(self, bytes: &[u8]) -> Result<Reply, Bad> {
        let text = std::str::from_utf8(bytes).map_err(|_| malformed("it is not UTF-8"))?;
        let events = || text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
        match self {
            Self::Openai => openai_stream(events()),
            Self::Anthropic => anthropic_stream(events()),
            Self::Ollama => {
                let lines = text.lines().filter(|line| !line.trim().is_empty());
                let parts: Result<Vec<OllamaPart>, Bad> =
                    lines.map(|line| parse(line.as_bytes())).collect();
                match parts {
                    Ok(parts) => ollama(&parts),
                    // The last line was torn.
                    Err(_) if !text.ends_with('\n') => Err(Bad::HungUp),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

fn malformed(why: impl std::fmt::Display) -> Bad {
    Bad::Malformed(why.to_string())
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Bad> {
    serde_json::from_slice(bytes).map_err(malformed)
}

#[derive(Deserialize)]
struct OpenaiReply {
    #[serde(default)]
    choices: Vec<OpenaiChoice>,
    #[serde(default)]
    usage: Option<OpenaiUsage>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct OpenaiChoice {
    #[serde(default)]
    message: Option<OpenaiMessage>,
    #[serde(default)]
    delta: Option<OpenaiMessage>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct OpenaiMessage {
    #[serde(default)]
    content: Option<String>,
}

#[derive(Deserialize)]
struct OpenaiUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

fn openai(whole: OpenaiReply) -> Result<Reply, Bad> {
    if let Some(error) = whole.error {
        return Err(Bad::Told(message_of(&error)));
    }
    let choice = whole.choices.into_iter().next().ok_or_else(|| malformed("it has no choices"))?;
    let usage = whole.usage.unwrap_or(OpenaiUsage { prompt_tokens: 0, completion_tokens: 0 });
    Ok(Reply {
        text: choice.message.and_then(|message| message.content).unwrap_or_default(),
        input_tokens: usage.prompt_tokens,
        output_tokens: usage.completion_tokens,
        cut: choice.finish_reason.as_deref() == Some("length"),
    })
}

fn openai_stream<'a>(events: impl Iterator<Item = &'a str>) -> Result<Reply, Bad> {
    let mut reply = Reply::default();
    let mut whole = false;
    for event in events {
        if event == "[DONE]" {
            return Ok(reply);
        }
        let part: OpenaiReply = parse(event.as_bytes())?;
        if let Some(error) = part.error {
            return Err(Bad::Told(message_of(&error)));
        }
        if let Some(choice) = part.choices.into_iter().next() {
            reply.text += &choice.delta.and_then(|delta| delta.content).unwrap_or_default();
            reply.cut |= choice.finish_reason.as_deref() == Some("length");
            whole |= choice.finish_reason.is_some();
        }
        if let Some(usage) = part.usage {
            (reply.input_tokens, reply.output_tokens) =
                (usage.prompt_tokens, usage.completion_tokens);
        }
    }
    // Not every server that speaks so says [DONE].
    if whole { Ok(reply) } else { Err(Bad::HungUp) }
}

#[derive(Deserialize)]
struct AnthropicReply {
    content: Vec<AnthropicBlock>,
    #[serde(default)]
    stop_reason: Option<String>,
    #[serde(default)]
    usage: AnthropicUsage,
}

#[derive(Deserialize)]
struct AnthropicBlock {
    #[serde(default)]
    text: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AnthropicUsage {
    input_tokens: u64,
    output_tokens: u64,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
}

impl AnthropicUsage {
    fn input(&self) -> u64 {
        let cached = self.cache_creation_input_tokens.unwrap_or(0);
        self.input_tokens + cached + self.cache_read_input_tokens.unwrap_or(0)
    }
}

fn anthropic(whole: AnthropicReply) -> Reply {
    Reply {
        text: whole.content.iter().map(|block| block.text.as_str()).collect(),
        input_tokens: whole.usage.input(),
        output_tokens: whole.usage.output_tokens,
        cut: whole.stop_reason.as_deref() == Some("max_tokens"),
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicEvent {
    MessageStart {
        message: AnthropicStart,
    },
    ContentBlockDelta {
        delta: AnthropicBlock,
    },
    MessageDelta {
        delta: AnthropicStop,
        #[serde(default)]
        usage: AnthropicUsage,
    },
    MessageStop,
    Error {
        error: Value,
    },
    #[serde(other)]
    Another,
}

#[derive(Deserialize)]
struct AnthropicStart {
    #[serde(default)]
    usage: AnthropicUsage,
}

#[derive(Deserialize)]
struct AnthropicStop {
    #[serde(default)]
    stop_reason: Option<String>,
}

fn anthropic_stream<'a>(events: impl Iterator<Item = &'a str>) -> Result<Reply, Bad> {
    let mut reply = Reply::default();
    for event in events {
        match parse(event.as_bytes())? {
            AnthropicEvent::MessageStart { message } => {
                reply.input_tokens = message.usage.input();
                reply.output_tokens = message.usage.output_tokens;
            }
            AnthropicEvent::ContentBlockDelta { delta } => reply.text += &delta.text,
            AnthropicEvent::MessageDelta { delta, usage } => {
                reply.cut |= delta.stop_reason.as_deref() == Some("max_tokens");
                reply.output_tokens = reply.output_tokens.max(usage.output_tokens);
            }
            AnthropicEvent::MessageStop => return Ok(reply),
            AnthropicEvent::Error { error } => return Err(Bad::Told(message_of(&error))),
            AnthropicEvent::Another => {}
        }
    }
    Err(Bad::HungUp)
}

#[derive(Deserialize)]
struct OllamaPart {
    #[serde(default)]
    message: Option<OpenaiMessage>,
    #[serde(default)]
    done: bool,
    #[serde(default)]
    done_reason: Option<String>,
    #[serde(default)]
    prompt_eval_count: u64,
    #[serde(default)]
    eval_count: u64,
    #[serde(default)]
    error: Option<Value>,
}

fn ollama(parts: &[OllamaPart]) -> Result<Reply, Bad> {
    let mut reply = Reply::default();
    for part in parts {
        if let Some(error) = &part.error {
            return Err(Bad::Told(message_of(error)));
        }
        let said = part.message.as_ref().and_then(|message| message.content.as_deref());
        reply.text += said.unwrap_or_default();
        if part.done {
            reply.cut = part.done_reason.as_deref() == Some("length");
            (reply.input_tokens, reply.output_tokens) = (part.prompt_eval_count, part.eval_count);
            return Ok(reply);
        }
    }
    Err(Bad::HungUp)
}

/// The words of an error, in any of the forms that errors have.
pub(super) fn message_of(error: &Value) -> String {
    let inner = error.get("error").unwrap_or(error);
    let text = inner.get("message").unwrap_or(inner);
    text.as_str().map_or_else(|| text.to_string(), ToOwned::to_owned)
}
