//! Models from places that lie: hostile folders, hubs, URLs and caches that others wrote to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::cli::{Cli, error_line, stdout, wheel};
use crate::mock::{Mock, answer};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The file that the hubs here have, and its SHA-256 as `sha256sum` prints it.
const FILE: &[u8] = b"0123456789";
const FILE_SHA256: &str = "84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";

fn json_of(output: &Output) -> Value {
    serde_json::from_str(&stdout(output)).expect("JSON")
}

/// Every file below `dir`, as paths in it.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for item in fs::read_dir(&next).into_iter().flatten().flatten() {
            match item.file_type().expect("a type").is_dir() {
                true => dirs.push(item.path()),
                false => found.push(item.path().strip_prefix(dir).expect("below").to_owned()),
            }
        }
    }
    found.sort();
    found
}

/// A listing of a repository: names, lengths and checksums.
fn listing(commit: &str, files: &[(&str, Option<u64>, Option<&str>)]) -> Vec<u8> {
    let files = files.iter().map(|(name, size, sha256)| {
        let lfs = sha256.map(|sha256| json!({"sha256": sha256, "size": size}));
        json!({"rfilename": name, "size": size, "lfs": lfs})
    });
    let text = json!({"sha": commit, "siblings": files.collect::<Vec<_>>()}).to_string();
    answer(200, &[("Content-Type", "application/json")], text.as_bytes())
}

/// `pull` from a hub in a home of its own.
fn pull(cli: &Cli, hub: &Mock, args: &[&str]) -> Output {
    let mut command = cli.command(&["pull"]);
    command.args(args).env("HF_ENDPOINT", &hub.origin).env("HOME", cli.path("home"));
    for name in ["HF_HOME", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE"] {
        command.env_remove(name);
    }
    command.env("HF_TOKEN", "secret-token").output().expect("start")
}

fn refused(cli: &Cli, hub: &Mock, source: &str) -> String {
    error_line(&pull(cli, hub, &[source]), 1, source)
}

#[cfg(unix)]
#[test]
fn a_file_that_may_not_grow_is_an_error_and_no_end() {
    let cli = Cli::new();
    let mock = Mock::start(|_, _| answer(200, &[], &vec![b'x'; 100_000]));
    // Blocks of 512 or 1024 bytes.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -f 16; exec \"$0\" pull \"$1\""]);
    command.arg(env!("CARGO_BIN_EXE_realizar")).arg(format!("{}/m.gguf", mock.origin));
    command.current_dir(cli.path(".")).env("REALIZAR_CACHE", cli.path("cache"));
    let error = error_line(&command.output().expect("start"), 1, "pull");
    assert!(error.contains("cannot write") && error.contains("File too large"), "{error}");
}

#[test]
fn a_download_is_told_where_no_bar_shows_it() {
    let cli = Cli::new();
    let mock = Mock::start(|_, _| answer(200, &[], FILE));
    let source = format!("{}/m.gguf", mock.origin);
    let told = || {
        let output = cli.command(&["tokenize", &source, "x"]).output().expect("start");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        errors.lines().next().expect("a line").to_owned()
    };
    let cache = cli.path("cache");
    let want = format!("downloading {source} into {}; later runs have it", cache.display());
    assert_eq!(told(), want);
    assert!(told().starts_with("error: "), "it is there, and is no model");
}

#[test]
fn a_model_of_the_hub_is_pulled_into_its_own_folder() {
    let hub = Mock::start(|path, _| match path {
        "/api/models/o/r/revision/main?blobs=true" => {
            listing(COMMIT, &[("m.gguf", Some(10), Some(FILE_SHA256)), ("README.md", None, None)])
        }
        "/o/r/resolve/0123456789abcdef0123456789abcdef01234567/m.gguf" => {
            answer(302, &[("Location", "/cdn/x?y"), ("X-Linked-Etag", FILE_SHA256)], b"")
        }
        "/cdn/x?y" => answer(200, &[("ETag", "\"v\"")], FILE),
        "/api/models/o/dir/revision/refs%2Fpr%2F1?blobs=true" => listing(
            COMMIT,
            &[
                ("config.json", None, None),
                ("model.safetensors", Some(10), Some(FILE_SHA256)),
                ("a/x.bin", None, None),
            ],
        ),
        path if path.ends_with("/config.json") => answer(200, &[], b"{}"),
        path if path.ends_with("/model.safetensors") => answer(200, &[], FILE),
        _ => answer(404, &[], b"no"),
    });
    let cli = Cli::new();
    let model = json_of(&pull(&cli, &hub, &["hf:o/r", "--json"]));
    assert_eq!(fs::read(model["path"].as_str().expect("a path")).expect("read"), FILE);
    assert_eq!(model["sha256"], FILE_SHA256);
    assert_eq!(model["source"], "hf:o/r");
    let heads = hub.heads();
    assert!(heads.iter().all(|head| head.contains("bearer secret-token")), "{heads:?}");
    // A second pull asks nobody, and is found offline.
    assert_eq!(json_of(&pull(&cli, &hub, &["hf:o/r", "--json", "--offline"])), model);
    assert_eq!(hub.heads().len(), heads.len());

    let dir = json_of(&pull(&cli, &hub, &["hf:o/dir@refs/pr/1", "--json"]));
    let path = Path::new(dir["path"].as_str().expect("a path"));
    let names = ["config.json", "manifest.json", "model.safetensors"].map(PathBuf::from);
    assert_eq!(files(path), names);
    assert_eq!((dir["bytes"].as_u64(), &dir["sha256"]), (Some(12), &Value::Null));
    // A folder with a file missing is not a model.
    fs::remove_file(path.join("config.json")).expect("remove");
    assert!(!pull(&cli, &hub, &["hf:o/dir@refs/pr/1", "--offline"]).status.success());

    let error = refused(&cli, &hub, "hf:o/none");
    assert!(error.contains("hub repository o/none: no such repository"), "{error}");
    assert!(files(&cli.path("cache/staging")).is_empty());
    assert!(files(&cli.path("home")).is_empty(), "nothing is written elsewhere");
}

#[test]
fn a_name_of_the_config_file_is_pulled_and_its_checksum_holds() {
    let hub = Mock::start(|path, _| match path {
        "/api/models/o/r/revision/main?blobs=true" => {
            listing(COMMIT, &[("m.gguf", Some(10), Some(FILE_SHA256))])
        }
        _ => answer(200, &[("Content-Length", "10")], FILE),
    });
    let cli = Cli::new();
    let config = cli.path("c.toml").display().to_string();
    let names = format!(
        "[names]\nplain = \"hf:o/r/m.gguf\"\n\
         good = {{ source = \"hf:o/r/m.gguf\", sha256 = \"{FILE_SHA256}\" }}\n\
         bad = {{ source = \"hf:o/r/m.gguf\", sha256 = \"{}\" }}\n",
        "0".repeat(64)
    );
    fs::write(&config, names).expect("write");
    let with = |args: &[&str]| pull(&cli, &hub, &[args, &["--config", &config]].concat());
    for name in ["plain", "good"] {
        let found = json_of(&with(&[name, "--json"]));
        assert_eq!(found["sha256"], FILE_SHA256, "{name}");
        assert_eq!(found["source"], "hf:o/r/m.gguf", "{name}");
    }
    let error = error_line(&with(&["bad"]), 1, "bad");
    let want =
        format!("`bad` of the config file: SHA-256 of hf:o/r/m.gguf is {FILE_SHA256}, expected");
    assert!(error.contains(&want), "{error}");
    let list = stdout(&cli.run(&["list", "--available", "--config", &config]));
    assert!(list.contains("good") && list.contains("hf:o/r/m.gguf, of the config file"), "{list}");
    let list = json_of(&cli.run(&["list", "--available", "--json", "--config", &config]));
    let names = list["names"].as_array().expect("names");
    assert!(names.iter().any(|own| own["name"] == "good" && own["sha256"] == FILE_SHA256));
    // A section that cannot be read stops every command.
    fs::write(&config, "[names]\nx = 3\n").expect("write");
    let error = error_line(&with(&["plain"]), 2, "a wrong section");
    assert!(error.contains("[names]: `x` must be a source"), "{error}");
}

#[test]
fn nothing_that_a_hub_says_becomes_a_path_outside() {
    for (commit, name, headers) in [
        ("../../../../../../evil", "m.gguf", vec![]),
        ("/evil", "m.gguf", vec![]),
        (COMMIT, "../../../evil.gguf", vec![]),
        (COMMIT, "/evil.gguf", vec![]),
        (COMMIT, "a/../../evil.gguf", vec![]),
        (COMMIT, "C:\\evil.gguf", vec![]),
        (COMMIT, "m.gguf", vec![("ETag", "\"../../../evil\"")]),
        (COMMIT, "m.gguf", vec![("X-Repo-Commit", "../../../evil")]),
        (COMMIT, "m.gguf", vec![("X-Linked-Etag", "\"../../../evil\""), ("ETag", "/evil")]),
        (COMMIT, "m.gguf", vec![("Content-Disposition", "attachment; filename=../evil")]),
    ] {
        let shown = format!("{commit} {name} {headers:?}");
        let hub = Mock::start(move |path, _| {
            if path.starts_with("/api/") {
                listing(commit, &[(name, None, None)])
            } else {
                answer(200, &headers, FILE)
            }
        });
        let cli = Cli::new();
        let output = pull(&cli, &hub, &["hf:o/r"]);
        let found = files(cli.path("").as_path());
        let evil = |path: &PathBuf| path.to_string_lossy().contains("evil");
        assert!(!found.iter().any(evil), "{shown}: {found:?}");
        if commit == COMMIT && name == "m.gguf" {
            let path = stdout(&output);
            assert!(Path::new(path.trim()).starts_with(cli.path("cache/models")), "{path}");
            assert!(files(&cli.path("cache/staging")).is_empty(), "{shown}: {found:?}");
        } else {
            error_line(&output, 1, &shown);
            assert_eq!(files(&cli.path("cache/models")), [] as [PathBuf; 0], "{shown}");
        }
    }
}

#[test]
fn redirects_stay_with_https_and_take_no_credentials_along() {
    let elsewhere = Mock::start(|_, _| answer(200, &[("X-Linked-Etag", "ab")], FILE));
    let target = format!("{}/x", elsewhere.origin);
    let hub = Mock::start(move |path, _| match path {
        path if path.starts_with("/api/models/o/") => listing(COMMIT, &[("m.gguf", None, None)]),
        path if path.starts_with("/o/other/") => answer(302, &[("Location", &target)], b""),
        path if path.starts_with("/o/plain/") => {
            answer(302, &[("Location", "http://example.org/m.gguf")], b"")
        }
        path if path.starts_with("/o/user/") => {
            answer(302, &[("Location", "http://localhost:x@example.org/m.gguf")], b"")
        }
        path if path.starts_with("/o/file/") => {
            answer(302, &[("Location", "file:///etc/passwd")], b"")
        }
        path if path.starts_with("/o/loop/") => answer(307, &[("Location", path)], b""),
        _ => answer(302, &[], b""),
    });
    let cli = Cli::new();
    // Another port of this machine is another server.
    let path = stdout(&pull(&cli, &hub, &["hf:o/other"]));
    assert_eq!(fs::read(path.trim()).expect("read"), FILE);
    let heads = elsewhere.heads();
    assert!(heads.len() == 1 && !heads[0].contains("secret-token"), "{heads:?}");
    assert!(!heads[0].contains("authorization"), "{heads:?}");
    for (repo, want) in [
        ("plain", "`http://example.org/m.gguf`: plain http is not accepted"),
        ("user", "`http://example.org/m.gguf`: plain http is not accepted"),
        ("file", "redirects to an unsupported URL"),
        ("loop", "more than 10 redirects"),
        ("nowhere", "redirects to no readable URL"),
    ] {
        let error = refused(&cli, &hub, &format!("hf:o/{repo}"));
        assert!(error.contains(want) && !error.contains("secret-token"), "{error}");
    }
}

#[test]
fn a_cut_connection_is_continued_and_a_wrong_checksum_refused() {
    let count = AtomicUsize::new(0);
    let hub = Mock::start(move |path, head| {
        let of = |name: &str| path.contains(name);
        if path.starts_with("/api/") {
            let sha256 = if of("o/wrong") { "0".repeat(64) } else { FILE_SHA256.to_owned() };
            let size = if of("o/long") { 11 } else { 10 };
            return listing(COMMIT, &[("m.gguf", Some(size), Some(&sha256))]);
        }
        let n = count.fetch_add(1, Ordering::SeqCst);
        let range = head.lines().find_map(|line| line.strip_prefix("range: bytes="));
        match range {
            Some("4-") => {
                assert!(head.contains("if-range: \"v\""), "{head}");
                let headers = [("Content-Range", "bytes 4-9/10"), ("ETag", "\"v\"")];
                answer(206, &headers, &FILE[4..])
            }
            Some(range) => panic!("{range}"),
            None if of("o/cut") && n == 0 => {
                answer(200, &[("ETag", "\"v\""), ("Content-Length", "10")], &FILE[..4])
            }
            None if of("o/linked") => answer(200, &[("X-Linked-Etag", &"1".repeat(64))], FILE),
            None => answer(200, &[("ETag", "\"v\"")], FILE),
        }
    });
    let cli = Cli::new();
    let path = stdout(&pull(&cli, &hub, &["hf:o/cut"]));
    assert_eq!(fs::read(path.trim()).expect("read"), FILE);
    assert_eq!(hub.heads().len(), 3);
    for (repo, want) in [
        ("wrong", format!("SHA-256 is {FILE_SHA256} (10 B), expected 0000")),
        ("long", "should have 11 B, but the server sends 10 B".to_owned()),
        ("linked", "two lengths or checksums".to_owned()),
    ] {
        let error = refused(&cli, &hub, &format!("hf:o/{repo}"));
        assert!(error.contains(&want), "{error}");
        assert_eq!(files(&cli.path("cache/models")).len(), 2, "the one that was sound");
        assert!(files(&cli.path("cache/staging")).is_empty(), "{repo}");
    }
}

#[test]
fn the_cache_of_the_hubs_own_tools_is_read_by_checksum_and_not_written() {
    let hub = Mock::start(|path, _| {
        if path.starts_with("/api/") {
            listing(COMMIT, &[("m.gguf", Some(10), Some(FILE_SHA256))])
        } else {
            answer(200, &[], FILE)
        }
    });
    for (kept, downloads) in [(FILE, 0), (b"another!!!", 1)] {
        let cli = Cli::new();
        let folder = format!("home/.cache/huggingface/hub/models--o--r/snapshots/{COMMIT}");
        fs::create_dir_all(cli.path(&folder)).expect("create");
        fs::write(cli.path(&folder).join("m.gguf"), kept).expect("write");
        let before = (files(&cli.path("home")), hub.heads().len());
        let path = stdout(&pull(&cli, &hub, &["hf:o/r"]));
        assert_eq!(fs::read(path.trim()).expect("read"), FILE);
        assert_eq!(hub.heads().len(), before.1 + 1 + downloads);
        assert_eq!(files(&cli.path("home")), before.0);
        assert_eq!(fs::read(cli.path(&folder).join("m.gguf")).expect("read"), kept);
    }
}

#[test]
fn secrets_of_a_url_are_kept_nowhere() {
    let server = Mock::start(|path, _| match path {
        "/gone.gguf?token=s3cret" => answer(404, &[], b""),
        _ => answer(200, &[], FILE),
    });
    let place = server.origin.strip_prefix("http://").expect("a scheme");
    let url = |file: &str| format!("http://user:passw0rd@{place}/{file}?token=s3cret");
    let cli = Cli::new();
    let is_clean = |text: &str| !text.contains("s3cret") && !text.contains("passw0rd");
    let output = cli.run(&["pull", &url("m.gguf"), "--json", "-vv"]);
    let model = json_of(&output);
    let shown = format!("http://{place}/m.gguf?…");
    assert_eq!((&model["source"], &model["name"]), (&json!(shown), &json!(shown)));
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(is_clean(&log), "{log}");
    // They are sent to the server, and nowhere else: no file has them.
    let heads = server.heads();
    assert!(heads[0].starts_with("get /m.gguf?token=s3cret "), "{heads:?}");
    assert!(heads[0].contains("authorization: basic dxnlcjpwyxnzdzbyza=="), "{heads:?}");
    for file in files(&cli.path("cache")) {
        let text = fs::read(cli.path("cache").join(&file)).expect("read");
        assert!(is_clean(&String::from_utf8_lossy(&text)), "{file:?}");
        assert!(is_clean(&file.to_string_lossy()), "{file:?}");
    }
    for args in [&["list"][..], &["list", "--json"]] {
        let list = stdout(&cli.run(args));
        assert!(list.contains(&shown) && is_clean(&list), "{list}");
    }
    // The whole URL finds it again; what is shown of it says that it is not the whole.
    assert_eq!(json_of(&cli.run(&["pull", &url("m.gguf"), "--json", "--offline"])), model);
    let error = cli.fails(&["pull", &shown], 1);
    assert!(error.contains("give the whole URL"), "{error}");
    for source in [
        url("gone.gguf"),
        "http://user:passw0rd@example.org/m.gguf?token=s3cret".to_owned(),
        "http://localhost:passw0rd@example.org/m.gguf".to_owned(),
        "ftp://user:passw0rd@h/m.gguf?token=s3cret".to_owned(),
        "https://user:passw0rd@h:x/m gguf?token=s3cret".to_owned(),
        "https://user:passw0rd@h/?token=s3cret".to_owned(),
    ] {
        for args in [&["pull", &source, "-vv"][..], &["pull", &source, "--offline"]] {
            let output = cli.run(args);
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && is_clean(&error), "{error}");
        }
    }
}

/// A proxy does not stand between this machine and itself.
#[test]
fn this_machine_is_reached_without_a_proxy() {
    let server = Mock::start(|_, _| answer(200, &[], FILE));
    let proxy = Mock::start(|_, _| answer(200, &[], b"of the proxy"));
    let cli = Cli::new();
    let mut command = cli.command(&["pull", &format!("{}/m.gguf", server.origin)]);
    for name in ["ALL_PROXY", "HTTP_PROXY", "http_proxy"] {
        command.env(name, &proxy.origin);
    }
    let path = stdout(&command.env_remove("NO_PROXY").output().expect("start"));
    assert_eq!(fs::read(path.trim()).expect("read"), FILE);
    assert_eq!(proxy.heads().len(), 0);
}

#[cfg(unix)]
#[test]
fn links_in_the_staging_folder_are_not_written_through() {
    use std::os::unix::fs::symlink;
    let server = Mock::start(|_, _| answer(200, &[("ETag", "\"v\"")], FILE));
    let cli = Cli::new();
    let url = format!("{}/m.gguf", server.origin);
    // A download in progress has the name of the folder that it becomes.
    let path = PathBuf::from(stdout(&cli.run(&["pull", &url])).trim());
    let key = path.parent().and_then(Path::file_name).expect("a key").to_string_lossy();
    let target = cli.path("target");
    for name in ["partial", "validator"] {
        fs::write(&target, "precious").expect("write");
        symlink(&target, cli.path(&format!("cache/staging/{key}.{name}"))).expect("link");
        let path = stdout(&cli.run(&["pull", "--force", &url]));
        assert_eq!(fs::read(path.trim()).expect("read"), FILE);
        assert!(fs::symlink_metadata(path.trim()).expect("a file").is_file(), "{name}");
        assert_eq!(fs::read(&target).expect("read"), b"precious", "{name}");
    }
    let lock = cli.path(&format!("cache/locks/{key}.lock"));
    fs::remove_file(&lock).expect("remove");
    symlink(cli.path("made"), &lock).expect("link");
    let error = cli.fails(&["pull", "--force", &url], 1);
    assert!(error.contains("cannot lock") && !cli.path("made").exists(), "{error}");
}

/// Files that run when Python or a shell looks for something in `dir`.
#[cfg(unix)]
fn hostile_folder(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let python = "import os\nopen(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'RAN'), \
                  'w').close()\n";
    fs::create_dir_all(dir.join("pip")).expect("create");
    let modules = ["pip/__init__.py", "pip/__main__.py", "runpy.py", "sitecustomize.py"];
    for name in modules.into_iter().chain(["usercustomize.py", "zipfile.py", "ssl.py"]) {
        fs::write(dir.join(name), python).expect("write");
    }
    for name in ["python3", "python", "pip3"] {
        fs::write(dir.join(name), "#!/bin/sh\n: > RAN\n").expect("write");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(dir.join(name), executable).expect("permissions");
    }
    fs::write(dir.join("pip.conf"), "[global]\nindex-url = http://127.0.0.1:1/\n").expect("write");
}

#[cfg(unix)]
#[test]
fn a_hostile_folder_runs_nothing() {
    let has_pip = Command::new("python3").args(["-I", "-m", "pip", "--version"]).output();
    let has_pip = has_pip.is_ok_and(|output| output.status.success());
    let cli = Cli::new();
    let dir = cli.path("folder");
    hostile_folder(&dir);
    let wheels = cli.path("wheels");
    fs::create_dir(&wheels).expect("create");
    wheel(
        &wheels.join("hostile_test_a-1-py3-none-any.whl"),
        &[
            ("a/m.gguf", FILE),
            (
                "hostile_test_a-1.dist-info/METADATA",
                b"Metadata-Version: 2.1\nName: hostile-test-a\nVersion: 1\n",
            ),
            (
                "hostile_test_a-1.dist-info/WHEEL",
                b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            ),
            ("hostile_test_a-1.dist-info/RECORD", b""),
        ],
    );
    let path = std::env::var("PATH").unwrap_or_default();
    let run = |path: &str| {
        let mut command = cli.command(&["pull", "pip:hostile-test-a==1"]);
        // The empty and the relative entries are the working directory.
        command.current_dir(&dir).env("PATH", path).env("PIP_NO_INDEX", "1");
        command.env("PIP_FIND_LINKS", &wheels).env("PYTHONPATH", &dir).env("PYTHONHOME", &dir);
        command.env("PYTHONUSERBASE", &dir);
        command.output().expect("start")
    };
    let error = error_line(&run(":.:../folder"), 1, "no PATH");
    assert!(error.contains("install Python 3 with pip"), "{error}");
    let output = run(&format!(":.:../folder:{path}:"));
    assert!(!dir.join("RAN").exists());
    if has_pip {
        assert_eq!(fs::read(stdout(&output).trim()).expect("read"), FILE);
    } else {
        println!("skipped: there is no Python with pip to pull with");
        error_line(&output, 1, "pull");
    }
}
