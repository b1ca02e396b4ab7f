//! Who proposes programs: a model behind an endpoint, a command of the user's, or a recording.

mod command;
mod http;
mod replay;
mod wire;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belljar::SpecError;
use belljar::secrets::{SecretSource, SecretSources};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::step::{Prompt, Usage};
use crate::task::read_text;
use wire::Dialect;

/// The longest answer that is read.
pub(crate) const MAX_ANSWER_BYTES: usize = 4 << 20;
/// The longest time for one answer that a task may ask for.
const MAX_TIMEOUT_MS: u64 = 3_600_000;
const MAX_RETRIES: u32 = 20;

/// Who proposes, as a task says it. No key is ever part of it: only where one is to be found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ProposerSpec {
    /// Any endpoint that speaks chat completions.
    Openai(Endpoint),
    Anthropic(Endpoint),
    Ollama(Endpoint),
    /// A program of this host: JSON on its standard input, the answer on its standard output.
    Command(CommandSpec),
    /// Answers that were given before.
    Replay(ReplaySpec),
    /// One that the operator of a server has described.
    Named(NamedSpec),
}

/// A model behind HTTP.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    pub model: String,
    /// Where; each kind has its own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The environment variable that holds the key; empty for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_env: Option<String>,
    /// The key by its name in the table of secrets, in place of `key_env`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Where that secret is to be found, taken from the table. Never its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_source: Option<SecretSource>,
    /// Certificates of authorities that this endpoint may be vouched for by, in place of those that the host trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    #[serde(default = "yes")]
    pub stream: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    #[serde(default = "endpoint_timeout_ms")]
    pub timeout_ms: u64,
    #[serde(default = "retries")]
    pub retries: u32,
    #[serde(default)]
    pub price: Price,
    /// More fields of the request, as the endpoint knows them.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl Endpoint {
    /// Looks its secret up by the name.
    fn find_secret(&mut self, base: &Path, secrets: &SecretSources) -> Result<(), SpecError> {
        let Some(name) = &self.secret else { return Ok(()) };
        if self.key_env.is_some() {
            let reason = "stands beside key_env: leave one of the two out";
            return Err(SpecError::new("proposer.secret", reason));
        }
        let Some(found) = secrets.get(name) else {
            let known: Vec<&str> = secrets.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let reason = format!(
                "is \"{name}\", which is not described (there are: {known}): write [secrets.{name}] with \
                 env = \"VARIABLE\", file = \"PATH\" or command = [\"PROGRAM\", …]"
            );
            return Err(SpecError::new("proposer.secret", reason));
        };
        let mut source = found.clone();
        let field = format!("secrets.{name}");
        source.check(&field)?;
        let placed = source.from_directory(base);
        placed.map_err(|error| SpecError::new(field, error.to_string()))?;
        self.secret_source = Some(source);
        Ok(())
    }
}

/// What answers cost, in any one currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Price {
    /// For a million tokens.
    pub input: f64,
    pub output: f64,
    /// For each answer.
    pub call: f64,
}

/// A program that proposes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandSpec {
    /// The program and its arguments; no shell reads them.
    pub command: Vec<String>,
    /// Where it is started; the directory of the task file unless told.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Variables of our environment that it gets, beside PATH, HOME, LANG and TMPDIR.
    #[serde(default)]
    pub env: Vec<String>,
    #[serde(default = "command_timeout_ms")]
    pub timeout_ms: u64,
    #[serde(default)]
    pub price: Price,
}

/// A recording: `belljar evolve export ID --recording FILE` makes one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReplaySpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The answers themselves, in the order of the steps.
    pub answers: Vec<String>,
}

/// One that somebody else has described.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedSpec {
    pub name: String,
}

const fn yes() -> bool {
    true
}

const fn endpoint_timeout_ms() -> u64 {
    120_000
}

const fn command_timeout_ms() -> u64 {
    60_000
}

const fn retries() -> u32 {
    4
}

impl ProposerSpec {
    /// Reads a file of proposers that callers know by their names.
    pub fn load_named(path: &Path) -> Result<BTreeMap<String, Self>, SpecError> {
        #[derive(Deserialize, JsonSchema)]
        struct Whole {
            #[serde(default)]
            secrets: SecretSources,
            #[serde(flatten)]
            all: BTreeMap<String, ProposerSpec>,
        }
        let told = |why: &str| SpecError::new("proposers", format!("{}: {why}", path.display()));
        let text = read_text(path, "proposers")?;
        let read: Result<Whole, _> = toml::from_str(&text);
        let Whole { secrets, mut all } =
            read.map_err(|error| told(error.to_string().trim_end()))?;
        let base = path.parent().unwrap_or(Path::new("."));
        for (name, one) in &mut all {
            let checked = one.read_files(base, &secrets).and_then(|()| one.check());
            checked.map_err(|error| told(&format!("[{name}] {error}")))?;
        }
        Ok(all)
    }

    /// Takes in the files that it names, and where relative paths are meant from.
    pub(crate) fn read_files(
        &mut self,
        base: &Path,
        secrets: &SecretSources,
    ) -> Result<(), SpecError> {
        match self {
            Self::Replay(replay) => {
                if let Some(file) = replay.file.take() {
                    let text = read_text(&base.join(file), "proposer.file")?;
                    replay.answers.extend(replay::read(&text)?);
                }
            }
            Self::Command(command) => {
                let named = command.directory.take().unwrap_or_default();
                let whole = std::path::absolute(base.join(named))
                    .map_err(|error| SpecError::new("proposer.directory", error.to_string()))?;
                command.directory = Some(whole);
            }
            Self::Openai(one) | Self::Anthropic(one) | Self::Ollama(one) => {
                one.find_secret(base, secrets)?;
                if let Some(file) = &mut one.ca_file {
                    *file = std::path::absolute(base.join(&*file))
                        .map_err(|error| SpecError::new("proposer.ca_file", error.to_string()))?;
                }
            }
            Self::Named(_) => {}
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), SpecError> {
        let wrong = |field: &str, reason: &str| {
            Err(SpecError::new(format!("proposer.{field}"), reason.to_owned()))
        };
        let (timeout_ms, retries, price) = match self {
            Self::Openai(one) | Self::Anthropic(one) | Self::Ollama(one) => {
                if one.model.is_empty() {
                    return wrong("model", "is empty: name the model as the endpoint knows it");
                }
                http::Target::new(one, self.dialect())?;
                (one.timeout_ms, one.retries, one.price)
            }
            Self::Command(one) => {
                if one.command.first().is_none_or(String::is_empty) {
                    return wrong(
                        "command",
                        "is empty: give the program and its arguments as a list",
                    );
                }
                (one.timeout_ms, 0, one.price)
            }
            Self::Replay(one) if one.answers.is_empty() => {
                return wrong("answers", "are none: give file or answers");
            }
            Self::Replay(_) => return Ok(()),
            Self::Named(_) => {
                return wrong("kind", "is \"named\", which only a server with --proposers knows");
            }
        };
        if timeout_ms == 0 || timeout_ms > MAX_TIMEOUT_MS {
            return wrong("timeout_ms", "must be between 1 and 3600000");
        }
        if retries > MAX_RETRIES {
            return wrong("retries", "must be 20 at most");
        }
        let fair = |one: f64| one.is_finite() && one >= 0.0;
        if !(fair(price.input) && fair(price.output) && fair(price.call)) {
            return wrong("price", "must be numbers that are not negative");
        }
        Ok(())
    }

    fn dialect(&self) -> Dialect {
        match self {
            Self::Anthropic(_) => Dialect::Anthropic,
            Self::Ollama(_) => Dialect::Ollama,
            Self::Openai(_) | Self::Command(_) | Self::Replay(_) | Self::Named(_) => {
                Dialect::Openai
            }
        }
    }

    fn price(&self) -> Price {
        match self {
            Self::Openai(one) | Self::Anthropic(one) | Self::Ollama(one) => one.price,
            Self::Command(one) => one.price,
            Self::Replay(_) | Self::Named(_) => Price::default(),
        }
    }

    pub(crate) fn has_price(&self) -> bool {
        self.price() != Price::default()
    }

    /// What an answer cost.
    pub(crate) fn cost(&self, usage: &Usage) -> f64 {
        let price = self.price();
        #[expect(clippy::cast_precision_loss, reason = "2^53 tokens are more than there will be")]
        let of = |tokens: u64, price: f64| tokens as f64 * price / 1e6;
        of(usage.input_tokens, price.input) + of(usage.output_tokens, price.output) + price.call
    }
}

/// What one proposal is asked with.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub prompt: &'a Prompt,
    /// The same for programs.
    pub context: serde_json::Value,
    /// Which proposal of the evolution it is, from 0.
    pub index: u64,
    /// Chance for whoever wants some.
    pub seed: u64,
}

/// What came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub text: String,
    pub usage: Usage,
}

/// Why nothing came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// Not this time; what was used is counted all the same.
    Failed { why: String, usage: Usage },
    /// Never, as things are.
    Fatal { why: String },
    /// The recording is at its end.
    NoMore,
}

/// One that is ready to be asked.
#[derive(Debug)]
pub(crate) enum Proposer {
    Endpoint(Box<http::Client>),
    Command(CommandSpec),
    Replay(Vec<String>),
}

impl Proposer {
    /// Makes it ready: finds its key. The environment is asked for nothing else.
    pub(crate) fn open(spec: &ProposerSpec) -> Result<Self, SpecError> {
        spec.check()?;
        Ok(match spec {
            ProposerSpec::Openai(one)
            | ProposerSpec::Anthropic(one)
            | ProposerSpec::Ollama(one) => {
                Self::Endpoint(Box::new(http::Client::open(one, spec.dialect())?))
            }
            ProposerSpec::Command(one) => Self::Command(one.clone()),
            ProposerSpec::Replay(one) => Self::Replay(one.answers.clone()),
            ProposerSpec::Named(_) => {
                return Err(SpecError::new("proposer.kind", "is not resolved"));
            }
        })
    }

    pub(crate) async fn propose(&self, ask: &Ask<'_>) -> Result<Answer, NoAnswer> {
        match self {
            Self::Endpoint(client) => client.ask(ask).await,
            Self::Command(command) => command::ask(command, ask).await,
            Self::Replay(answers) => {
                let index = usize::try_from(ask.index).unwrap_or(usize::MAX);
                let text = answers.get(index).ok_or(NoAnswer::NoMore)?.clone();
                Ok(Answer { text, usage: Usage::default() })
            }
        }
    }
}
