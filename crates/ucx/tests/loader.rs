//! Libraries that are loaded, and that are refused: each in a process of its own, as nothing is
//! ever unloaded.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use backhaul_ucx::{LoadError, Search};

/// Runs a scenario of [`a_process_of_its_own`], returning what it printed
fn run(scenario: &str, change: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--ignored",
            "--exact",
            "a_process_of_its_own",
            "--nocapture",
        ])
        .env("LOADER_SCENARIO", scenario)
        .env_remove("BACKHAUL_LIBUCP")
        .env_remove("UCX_MEM_MMAP_HOOK_MODE");
    change(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    text
}

#[test]
#[ignore = "run by the others, in processes of their own"]
fn a_process_of_its_own() {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let search = Search {
        folders: variable("LOADER_FOLDER").into_iter().collect(),
        ..Search::from_environment()
    };
    match std::env::var("LOADER_SCENARIO").as_deref() {
        Ok("load") => match search.load(false) {
            Ok(library) => {
                println!("loaded {} {}", library.version(), library.path().display());
                assert!(std::env::var_os("UCX_MEM_MMAP_HOOK_MODE").is_none());
            }
            Err(error) => println!("{} {error}", name_of(&error)),
        },
        Ok("beside") => {
            // Another copy is there first, by whatever means.
            let other = variable("LOADER_OTHER").unwrap();
            // SAFETY: a library of this test that does nothing when it is loaded.
            let other = unsafe { libloading::Library::new(other) }.unwrap();
            println!("{}", search.load(false).unwrap_err());
            drop(other);
        }
        scenario => println!("no scenario: {scenario:?}"),
    }
}

fn name_of(error: &LoadError) -> &'static str {
    match error {
        LoadError::NotFound { .. } => "NotFound",
        LoadError::Open { .. } => "Open",
        LoadError::SecondCopy { .. } => "SecondCopy",
        LoadError::Version { .. } => "Version",
        LoadError::MissingSymbol { .. } => "MissingSymbol",
        LoadError::HookMode { .. } => "HookMode",
        _ => "another",
    }
}

/// A folder that goes with the test
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let unique = format!("backhaul-loader-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Compiles a library that says it is a version of UCX, and has no more of it
    fn library(&self, name: &str, (major, minor): (u32, u32)) -> Option<PathBuf> {
        let source = self.0.join("stub.c");
        let text = format!(
            "void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release) \
             {{ *major = {major}; *minor = {minor}; *release = 0; }}\n"
        );
        // All that is looked for must be there before the version is asked.
        let text = FUNCTIONS.iter().fold(text, |text, function| {
            format!("{text}void {function}(void) {{}}\n")
        });
        self.compile(name, &source, &text)
    }

    fn compile(&self, name: &str, source: &Path, text: &str) -> Option<PathBuf> {
        std::fs::write(source, text).unwrap();
        let path = self.0.join(name);
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-o"])
            .arg(&path)
            .arg(source)
            .status();
        if !status.is_ok_and(|status| status.success()) {
            println!("skipped: no C compiler `cc` to make a library with");
            return None;
        }
        Some(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A file that is left there does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn without_a_library_the_error_names_the_extra_and_what_was_looked_for() {
    let text = run("load", |command| {
        command.env("LOADER_FOLDER", "/nowhere/libucx/lib");
    });
    if text.contains("loaded ") {
        println!("skipped: the system has UCX: {text}");
        return;
    }
    assert!(text.contains("NotFound"), "{text}");
    assert!(text.contains("pip install 'backhaul[ucx]'"), "{text}");
    for looked_for in ["/nowhere/libucx/lib/libucp.so", "libucp.so.0"] {
        assert!(text.contains(looked_for), "{text}");
    }
}

#[test]
fn a_file_that_is_named_is_the_only_one() {
    let text = run("load", |command| {
        command.env("BACKHAUL_LIBUCP", "/nowhere/libucp.so");
    });
    assert!(text.contains("Open /nowhere/libucp.so"), "{text}");
}

#[test]
fn an_old_version_is_refused_with_its_number() {
    let folder = Folder::new("old");
    let Some(path) = folder.library("libucp.so.0", (1, 12)) else {
        return;
    };
    let text = run("load", |command| {
        command.env("BACKHAUL_LIBUCP", &path);
    });
    assert!(text.contains("Version"), "{text}");
    assert!(text.contains("UCX 1.12") && text.contains("1.13"), "{text}");
    assert!(text.contains(&path.display().to_string()), "{text}");
}

#[test]
fn a_library_that_lacks_a_function_is_refused_with_its_name() {
    let folder = Folder::new("lacks");
    let source = folder.0.join("empty.c");
    let Some(path) = folder.compile("libucp.so.0", &source, "int nothing;\n") else {
        return;
    };
    let text = run("load", |command| {
        command.env("BACKHAUL_LIBUCP", &path);
    });
    assert!(text.contains("MissingSymbol"), "{text}");
    assert!(text.contains("ucp_get_version"), "{text}");
}

#[test]
fn a_copy_beside_one_that_is_loaded_is_refused_with_both_paths() {
    let (system, wheel) = (Folder::new("system"), Folder::new("wheel"));
    let made = (
        system.library("libucs.so.0", (1, 13)),
        wheel.library("libucp.so", (1, 21)),
    );
    let (Some(other), Some(wanted)) = made else {
        return;
    };
    let text = run("beside", |command| {
        command
            .env("LOADER_OTHER", &other)
            .env("BACKHAUL_LIBUCP", &wanted);
    });
    assert!(text.contains("would come beside it"), "{text}");
    for path in [&other, &wanted] {
        assert!(text.contains(&path.display().to_string()), "{text}");
    }
}

#[test]
fn what_is_loaded_is_not_searched_beyond() {
    let (system, wheel) = (Folder::new("half"), Folder::new("whole"));
    let made = (
        system.library("libucs.so.0", (1, 13)),
        wheel.library("libucp.so", (1, 21)),
    );
    let (Some(other), Some(_)) = made else {
        return;
    };
    // Its libucp is missing: the wheel's must not come in its place.
    let text = run("beside", |command| {
        command
            .env("LOADER_OTHER", &other)
            .env("LOADER_FOLDER", &wheel.0);
    });
    let missing = system.0.join("libucp.so.0");
    assert!(text.contains(&missing.display().to_string()), "{text}");
    assert!(text.contains("cannot be opened"), "{text}");
}

#[test]
fn the_hook_mode_that_crashes_is_refused() {
    let text = run("load", |command| {
        command.env("UCX_MEM_MMAP_HOOK_MODE", "none");
    });
    assert!(text.contains("HookMode"), "{text}");
    assert!(text.contains("unset it"), "{text}");
}

#[test]
fn the_wheel_is_loaded_once_and_leaves_the_environment_as_it_was() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let versions = root.join(".venv/lib").read_dir();
    let mut folders = versions
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("site-packages/libucx/lib"));
    let Some(folder) = folders.find(|folder| folder.join("libucp.so").exists()) else {
        println!("skipped: .venv has no wheel libucx");
        return;
    };
    let text = run("load", |command| {
        command.env("LOADER_FOLDER", &folder);
    });
    assert!(text.contains("loaded 1."), "{text}");
    assert!(text.contains("libucx/lib/libucp.so"), "{text}");
}

/// All functions that are looked for, but that of the version
const FUNCTIONS: [&str; 22] = [
    "ucs_status_string",
    "ucp_config_read",
    "ucp_config_modify",
    "ucp_config_release",
    "ucp_init_version",
    "ucp_cleanup",
    "ucp_context_query",
    "ucp_worker_create",
    "ucp_worker_destroy",
    "ucp_worker_get_address",
    "ucp_worker_release_address",
    "ucp_worker_get_efd",
    "ucp_worker_arm",
    "ucp_worker_progress",
    "ucp_worker_set_am_recv_handler",
    "ucp_ep_create",
    "ucp_ep_close_nbx",
    "ucp_ep_flush_nbx",
    "ucp_am_send_nbx",
    "ucp_am_recv_data_nbx",
    "ucp_am_data_release",
    "ucp_request_free",
];
