//! The wheel: installed in a fresh environment, with nothing else, it runs code.

use std::path::{Path, PathBuf};

use belljar_tests::{Program, TempDir};

fn wheel() -> PathBuf {
    let stage = std::env::var_os("BELLJAR_TEST_DIR").expect("run by cargo xtask test");
    let entries = std::fs::read_dir(stage).expect("the stage").flatten().map(|entry| entry.path());
    let mut wheels = entries.filter(|path| path.extension().is_some_and(|end| end == "whl"));
    wheels.next().expect("cargo xtask test builds it")
}

/// Where an environment keeps its packages.
fn packages(python: &Path) -> PathBuf {
    let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let ended = Program::new(python).args(["-c", code]).run();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    PathBuf::from(ended.out().trim())
}

#[test]
fn wheel_brings_the_package_and_the_program() {
    let directory = TempDir::new();
    let place = directory.join("fresh");
    let python = place.join("bin/python");
    let made =
        Program::new("/usr/bin/python3").args(["-m", "venv", "--without-pip"]).arg(&place).run();
    assert_eq!(made.code, Some(0), "{made:?}");
    let installed = Program::new("/usr/bin/python3")
        .args(["-m", "pip", "--python"])
        .arg(&python)
        .args([
            "install",
            "--no-deps",
            "--no-index",
            "--disable-pip-version-check",
            "--no-cache-dir",
        ])
        .arg(wheel())
        .run();
    assert_eq!(installed.code, Some(0), "{installed:?}");
    // What it depends on is taken from where the suites have it: an index is not theirs to ask.
    let tools = std::env::var("BELLJAR_TEST_PYTHON").expect("run by cargo xtask test");
    let depends = packages(Path::new(&tools)).display().to_string();
    std::fs::write(packages(&python).join("depends.pth"), depends).expect("our own environment");
    let code = "import belljar\n\
                print(belljar._find.program(), belljar.__version__, belljar.run('print(6 * 7)').stdout)\n\
                belljar.stop_server()";
    let ended = Program::new("/usr/bin/env")
        .args(["-u", "BELLJAR_BIN"])
        .arg(&python)
        .args(["-c", code])
        .env("BELLJAR_SOCKET", directory.join("b.sock"))
        .env("BELLJAR_STATE", directory.join("state"))
        .run();
    let program = place.join("bin/belljar");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(ended.out(), format!("{} {version} 42\n\n", program.display()), "{ended:?}");
}
