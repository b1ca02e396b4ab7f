//! Between the host and a sandbox: nothing that comes out is written where the caller did not say.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use super::rig::{Rig, SECRET, block_on, path};

/// The caller's own directory, beside everything else.
fn home(rig: &Rig) -> PathBuf {
    let home = rig.inside("../home");
    fs::create_dir(&home).unwrap();
    home
}

#[test]
fn files_and_trees_go_both_ways() {
    let rig = Rig::new();
    let (files, home) = (rig.files(), home(&rig));
    fs::create_dir_all(home.join("project/src")).unwrap();
    fs::write(home.join("project/src/main.py"), "print(1)").unwrap();
    fs::write(home.join("project/run"), "#!").unwrap();
    fs::set_permissions(home.join("project/run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("src/main.py", home.join("project/link")).unwrap();
    block_on(async {
        // Into a directory that is there, and as one that is not.
        files.copy_in(&home.join("project"), &path("/workspace")).await.unwrap();
        files.copy_in(&home.join("project"), &path("/workspace/other")).await.unwrap();
        files.copy_in(&home.join("project/run"), &path("/tmp/renamed")).await.unwrap();
    });
    for name in ["workspace/project/src/main.py", "workspace/other/src/main.py"] {
        assert_eq!(fs::read(rig.inside(name)).unwrap(), b"print(1)", "{name}");
    }
    assert!(fs::symlink_metadata(rig.inside("workspace/other/link")).unwrap().is_symlink());
    assert_eq!(fs::read(rig.inside("tmp/renamed")).unwrap(), b"#!");
    block_on(async {
        let done = files.copy_out(&path("project"), &home.join("back"), 1 << 20).await.unwrap();
        assert_eq!((done.files, done.skipped.len()), (2, 1), "{done:?}");
        assert_eq!(done.skipped[0].reason, "a symbolic link");
        files.copy_out(&path("project/run"), &home, 1 << 20).await.unwrap();
        files.copy_out(&path("project/run"), &home.join("named"), 1 << 20).await.unwrap();
        let missing = files.copy_out(&path("nowhere"), &home, 1 << 20).await.unwrap_err();
        assert_eq!(missing.fault.kind(), "not_found");
        let absent = files.copy_in(&home.join("nowhere"), &path("/tmp")).await.unwrap_err();
        assert_eq!(absent.fault.kind(), "ours", "{absent}");
    });
    assert_eq!(fs::read(home.join("back/src/main.py")).unwrap(), b"print(1)");
    let mode = |name: &str| fs::metadata(home.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("run"), mode("named"), mode("back/run")), (0o755, 0o755, 0o755));
    fs::remove_dir_all(home).unwrap();
}

#[test]
fn what_comes_out_is_never_written_through_a_link() {
    let rig = Rig::new();
    let (files, home) = (rig.files(), home(&rig));
    fs::create_dir_all(rig.inside("workspace/out/sub")).unwrap();
    fs::write(rig.inside("workspace/out/secret"), "theirs").unwrap();
    fs::write(rig.inside("workspace/out/sub/secret"), "theirs").unwrap();
    // The same, done by paths, writes through it.
    symlink(rig.outside("secret"), home.join("control")).unwrap();
    fs::copy(rig.inside("workspace/out/secret"), home.join("control")).unwrap();
    assert_eq!(fs::read(rig.outside("secret")).unwrap(), b"theirs");
    fs::write(rig.outside("secret"), SECRET).unwrap();

    fs::create_dir(home.join("out")).unwrap();
    symlink(rig.outside("secret"), home.join("out/secret")).unwrap();
    block_on(async {
        let done = files.copy_out(&path("out"), &home, 1 << 20).await.unwrap();
        assert_eq!(done.files, 2);
    });
    rig.assert_outside_is_whole();
    assert_eq!(fs::read(home.join("out/secret")).unwrap(), b"theirs");
    // Nor is a link taken for a directory.
    fs::remove_dir_all(home.join("out/sub")).unwrap();
    symlink(rig.outside(""), home.join("out/sub")).unwrap();
    let error = block_on(files.copy_out(&path("out"), &home, 1 << 20)).unwrap_err();
    assert!(error.path.contains("out/sub"), "{error}");
    rig.assert_outside_is_whole();
    // More than may come does not.
    let error = block_on(files.copy_out(&path("out"), &home.join("new"), 7)).unwrap_err();
    assert_eq!(error.fault.kind(), "refused", "{error}");
    fs::remove_dir_all(home).unwrap();
}

#[test]
fn an_archive_that_lies_about_where_it_goes_is_refused() {
    let rig = Rig::new();
    let home = home(&rig);
    for name in ["../outside/new", "/tmp/new", "a/../../outside/new"] {
        let archive = super::archives::pack(&[(name, "x")]);
        let error = block_on(super::super::unpack_host(&archive[..], &home, 1 << 20)).unwrap_err();
        assert_eq!(error.fault.kind(), "refused", "{error}");
    }
    let beside = super::archives::pack(&[("asked/for", "x"), ("beside", "x")]);
    let error = block_on(super::super::unpack_host(&beside[..], &home, 1 << 20)).unwrap_err();
    assert!(error.to_string().contains("beside"), "{error}");
    rig.assert_outside_is_whole();
    fs::remove_dir_all(home).unwrap();
}
