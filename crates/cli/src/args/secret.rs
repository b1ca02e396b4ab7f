//! The arguments of `belljar secret`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  belljar secret set github                        # asks for the value, and does not show it
  pass show github | belljar secret set github
  belljar run --secret github=env:GITHUB_TOKEN tool.py
  belljar sandbox create work --secret github=env:GITHUB_TOKEN
  belljar run --egress api.example.com --secret key@api.example.com tool.py   # a token inside, the value outside
  belljar secret list
  belljar secret remove github

Values never stand on a command line. They are kept encrypted in the state directory; the key is secrets.key beside
them, unless $BELLJAR_SECRETS_KEY_FILE, or the systemd credential belljar-secrets-key, says otherwise.

Names may also lead elsewhere, by a file of the host: /etc/belljar/secrets.toml, ~/.config/belljar/secrets.toml, or
the one that $BELLJAR_SECRETS names.
  [github]
  env = \"GITHUB_TOKEN\"                # a variable of whoever runs it: the server, or this command
  [deploy]
  file = \"/run/keys/deploy\"           # yours, and readable by nobody else
  [model]
  command = [\"pass\", \"show\", \"model\"]

The program has the value in its variable; in its output, events and records, [secret] stands in its place, also where
it was encoded in base64, hexadecimal or for a URL. With NAME=canary:VAR it is a decoy, and an event if it comes out.

With hosts the program never has it: NAME@api.example.com (with --egress api.example.com) gives it a random token, and
the value takes its place in headers on the way to those hosts, inside TLS; with +query and +body behind the hosts there,
too. A token sent anywhere else is refused, and an event. !HOST is passed on as it is: for clients that pin certificates.")]
pub(crate) struct Secret {
    #[command(subcommand)]
    pub command: SecretCommand,

    /// The state directory, which holds the secrets [default: $BELLJAR_STATE, see serve --help]
    #[arg(long, global = true, value_name = "DIR")]
    pub state: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SecretCommand {
    /// Keep a value: asked for on the terminal, or read from standard input
    Set {
        /// Letters, digits, _, - and .
        name: String,
    },
    /// List names, never values
    #[command(visible_alias = "ls")]
    List {
        #[arg(long)]
        json: bool,
    },
    /// Forget a value
    #[command(visible_alias = "rm")]
    Remove { name: String },
}
