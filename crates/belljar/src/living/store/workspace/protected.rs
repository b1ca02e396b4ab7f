//! Names that act by themselves on the host: run or obeyed when somebody enters a directory, opens an editor, starts a
//! shell, imports a module or commits, without calling them. A Makefile or a package.json is read by who calls make or npm,
//! and is an ordinary change.

/// Files and directories of these names, wherever they are.
const ANYWHERE: &[&str] = &[
    ".bash_aliases",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".claude",
    ".codex",
    ".cursor",
    ".devcontainer",
    ".direnv",
    ".envrc",
    ".exrc",
    ".gdbinit",
    ".gitconfig",
    ".gitlab-ci.yml",
    ".husky",
    ".idea",
    ".inputrc",
    ".lldbinit",
    ".login",
    ".mcp.json",
    ".netrc",
    ".npmrc",
    ".nvimrc",
    ".pre-commit-config.yaml",
    ".profile",
    ".pypirc",
    ".ssh",
    ".tmux.conf",
    ".vimrc",
    ".vscode",
    ".yarnrc",
    ".yarnrc.yml",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshenv",
    ".zshrc",
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
];
/// These below a directory.
const BELOW: &[(&str, &[&str])] = &[
    (".cargo", &["config", "config.toml"]),
    (".config", &["autostart", "fish", "git", "systemd"]),
    (".github", &["workflows", "actions"]),
    ("__pycache__", &[]),
];
/// Of a repository all but what commits and branches are made of.
const GIT_DATA: &[&str] = &[
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "HEAD",
    "MERGE_HEAD",
    "MERGE_MSG",
    "ORIG_HEAD",
    "index",
    "logs",
    "objects",
    "packed-refs",
    "refs",
    "rebase-merge",
    "shallow",
];

/// The part of a path that is protected, from its beginning.
pub(super) fn guarded(path: &[u8]) -> Option<&[u8]> {
    let mut end = 0;
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    for (at, part) in parts.iter().enumerate() {
        end += part.len() + usize::from(at > 0);
        let next = parts.get(at + 1).copied();
        if is_guarded(part) {
            return Some(&path[..end]);
        }
        if next.is_some_and(|next| is_guarded_below(part, next)) {
            let next = next.map_or(0, <[u8]>::len);
            return Some(&path[..end + 1 + next]);
        }
        // A file or link in place of a repository's directory leads git elsewhere.
        if same(part, ".git") && next.is_none() {
            return Some(&path[..end]);
        }
    }
    None
}

fn is_guarded(part: &[u8]) -> bool {
    ANYWHERE.iter().any(|name| same(part, name)) || part.to_ascii_lowercase().ends_with(b".pth")
}

fn is_guarded_below(directory: &[u8], name: &[u8]) -> bool {
    if same(directory, ".git") {
        return !GIT_DATA.iter().any(|data| data.as_bytes() == name);
    }
    let listed = BELOW.iter().find(|(listed, _)| same(directory, listed));
    listed.is_some_and(|(_, names)| names.iter().any(|one| same(name, one)))
}

/// Some file systems find a file by another case.
fn same(part: &[u8], name: &str) -> bool {
    part.eq_ignore_ascii_case(name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_by_itself_is_protected_and_what_is_called_is_not() {
        let protected: &[(&str, &str)] = &[
            (".git/hooks/pre-commit", ".git/hooks"),
            ("sub/.git/config", "sub/.git/config"),
            (".GIT/Hooks/x", ".GIT/Hooks"),
            (".git", ".git"),
            (".git/modules/m/hooks/x", ".git/modules"),
            (".git/info/attributes", ".git/info"),
            (".bashrc", ".bashrc"),
            ("a/b/.envrc", "a/b/.envrc"),
            (".vscode/tasks.json", ".vscode"),
            (".github/workflows/ci.yml", ".github/workflows"),
            ("lib/evil.PTH", "lib/evil.PTH"),
            ("tests/conftest.py", "tests/conftest.py"),
            ("sitecustomize.py", "sitecustomize.py"),
            (".cargo/config.toml", ".cargo/config.toml"),
        ];
        for (path, part) in protected {
            assert_eq!(guarded(path.as_bytes()), Some(part.as_bytes()), "{path}");
        }
        let plain = [
            "Makefile",
            "package.json",
            "src/main.py",
            ".git/objects/ab/cd",
            ".git/refs/heads/main",
            ".git/HEAD",
            ".github/README.md",
            "bashrc",
            "a.pth.txt",
            ".gitignore",
        ];
        for path in plain {
            assert_eq!(guarded(path.as_bytes()), None, "{path}");
        }
    }
}
