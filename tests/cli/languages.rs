//! Languages are data: a file adds one, wherever its interpreter lies.

use std::fs;
use std::path::Path;

use belljar_tests::{Level, Program, Sandbox, TempDir, each_level};

/// A configuration directory with one language file.
fn config_with(name: &str, command: &str) -> TempDir {
    let config = TempDir::new();
    let text = format!(
        "name = \"{name}\"\ncommands = [\"{command}\"]\nargs = [\"{{file}}\", \"fixed\"]\n\
         file = \"main.{name}\"\nextensions = [\"{name}\"]\nversion = [\"-c\", \"echo 1.2.3\"]\n\
         [environment]\nFROM_FILE = \"yes\"\n"
    );
    config.file(&format!("belljar/languages/{name}.toml"), text);
    config
}

each_level!(language_file_adds_a_language, |level| {
    let config = config_with("shell", "/bin/sh");
    let outcome = Sandbox::at(level)
        .host_env("XDG_CONFIG_HOME", config.path())
        .args(["more"])
        .run_code("shell", "echo \"${0##*/} $1 $2 $FROM_FILE\"");
    assert_eq!(outcome.stdout, "main.shell fixed more yes\n", "{outcome:?}");
});

each_level!(extension_of_an_added_language_is_known, |level| {
    let config = config_with("shell", "/bin/sh");
    let directory = TempDir::new();
    let outcome = Sandbox::at(level)
        .host_env("XDG_CONFIG_HOME", config.path())
        .run_file(&directory.file("script.shell", "echo by extension"));
    assert_eq!(outcome.stdout, "by extension\n", "{outcome:?}");
});

each_level!(interpreter_outside_the_system_brings_its_prefix, |level| {
    let prefix = TempDir::below(Path::new("/var/tmp"));
    let dash = prefix.program("opt/bin/dash", fs::read("/bin/dash").expect("dash is installed"));
    prefix.file("opt/lib/greeting", "from its prefix\n");
    prefix.file("beside", "not its business\n");
    let config = config_with("mydash", &dash.display().to_string());
    let code = format!(
        "cat {0}/opt/lib/greeting; cat {0}/beside 2>/dev/null || echo hidden",
        prefix.path().display()
    );
    let outcome =
        Sandbox::at(level).host_env("XDG_CONFIG_HOME", config.path()).run_code("mydash", &code);
    let beside = if level == Level::None { "not its business" } else { "hidden" };
    assert_eq!(outcome.stdout, format!("from its prefix\n{beside}\n"), "{outcome:?}");
    assert_eq!(outcome.receipt.versions.interpreter, dash.display().to_string());
});

#[test]
fn interpreter_that_the_sandbox_would_cover_is_refused() {
    let prefix = TempDir::new();
    let dash = prefix.program("bin/dash", fs::read("/bin/dash").expect("dash is installed"));
    let config = config_with("mydash", &dash.display().to_string());
    let ended =
        Sandbox::standard().host_env("XDG_CONFIG_HOME", config.path()).plain("mydash", "echo ran");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err().contains("move it elsewhere"), "{ended:?}");
}

#[test]
fn own_file_replaces_a_built_in_language() {
    let config = config_with("python", "/bin/sh");
    let outcome = Sandbox::standard()
        .host_env("XDG_CONFIG_HOME", config.path())
        .run_code("python", "echo not python");
    assert_eq!(outcome.stdout, "not python\n", "{outcome:?}");
}

#[test]
fn languages_are_listed_with_version_and_path() {
    let config = config_with("shell", "/bin/sh");
    config.file(
        "belljar/languages/ghost.toml",
        "name = \"ghost\"\ncommands = [\"/nonexistent\"]\nargs = []\nfile = \"f\"\ninstall = \"do this\"\n",
    );
    let languages = || Program::belljar().arg("languages").env("XDG_CONFIG_HOME", config.path());
    let text = languages().run();
    assert_eq!(text.code, Some(0), "{text:?}");
    for words in
        ["python ", "bash ", "node ", "/usr/bin/python3", "1.2.3", "not installed", "do this"]
    {
        assert!(text.out().contains(words), "no {words} in {text:?}");
    }
    let json = languages().arg("--json").run().json();
    let find = |name: &str| {
        let all = json.as_array().expect("a list").clone();
        all.into_iter().find(|one| one["name"] == name).expect("listed")
    };
    assert_eq!(find("python")["interpreter"], "/usr/bin/python3");
    assert!(find("python")["version"].as_str().is_some_and(|text| text.starts_with("3.")));
    assert!(find("ghost")["interpreter"].is_null());
}
