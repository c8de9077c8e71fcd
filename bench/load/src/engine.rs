//! `pinion-bench engine`: hands over to the program that is linked with the peer engines.
//!
//! They are heavy to build and nothing else needs them, so that program is a workspace of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::ArgMatches;

/// The workspace, in the tree that this program was built from.
const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../engine");

/// Builds the program where needed and runs it with the arguments that were given.
pub fn command(matches: &ArgMatches) -> Result<ExitCode, String> {
    let workspace = Path::new(WORKSPACE);
    if !workspace.join("Cargo.toml").exists() {
        return Err(format!(
            "{} is not there: engines are measured from the source tree",
            workspace.display()
        ));
    }
    let target = target_directory(workspace);
    let program = target.join("release/pinion-bench-engine");
    if !program.exists() || matches.get_flag("build") {
        build(workspace, &target)?;
    }
    let arguments = matches.get_many::<String>("argument").into_iter().flatten();
    let status = Command::new(&program)
        .arg("run")
        .args(arguments)
        .status()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(ExitCode::from(status.code().map_or(1, |code| code as u8)))
}

fn target_directory(workspace: &Path) -> PathBuf {
    match std::env::var_os("PINION_ENGINE_TARGET") {
        Some(target) => PathBuf::from(target),
        None => workspace.join("target"),
    }
}

/// Gets the two peers that cargo does not build, then builds the rest. A peer that cannot be had is
/// left out, and the program says so whenever it is asked for it.
fn build(workspace: &Path, target: &Path) -> Result<(), String> {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(workspace)
        .args(["build", "--release", "--target-dir"])
        .arg(target);
    let mut features = vec!["lmdb", "redb", "fjall"];
    for (peer, variable) in [
        ("rocksdb", "ROCKSDB_LIB_DIR"),
        ("wiredtiger", "WIREDTIGER_DIR"),
    ] {
        if std::env::var_os(variable).is_some() {
            features.push(peer);
            continue;
        }
        match get(workspace, target, peer) {
            Ok(dir) => {
                cargo.env(variable, dir);
                features.push(peer);
            }
            Err(why) => eprintln!("{peer} is left out: {why}"),
        }
    }
    cargo.args(["--no-default-features", "--features", &features.join(",")]);
    // clang's own headers, for machines that have only its library.
    if std::env::var_os("BINDGEN_EXTRA_CLANG_ARGS").is_none()
        && let Some(headers) = output(Command::new("cc").arg("-print-file-name=include"))
    {
        cargo.env("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{headers}"));
    }
    eprintln!("{cargo:?}");
    match cargo.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("the engines were not built: {status}")),
        Err(error) => Err(format!("cargo: {error}")),
    }
}

fn get(workspace: &Path, target: &Path, peer: &str) -> Result<String, String> {
    let script = workspace.join(format!("get-{peer}"));
    let mut command = Command::new(&script);
    command.arg(target.join(peer));
    eprintln!("{command:?}");
    output(&mut command).ok_or_else(|| format!("{} failed", script.display()))
}

/// The last line that a command printed, if it succeeded.
fn output(command: &mut Command) -> Option<String> {
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let last = text.lines().last()?.trim().to_owned();
    (output.status.success() && !last.is_empty()).then_some(last)
}
