//! The docstrings of Python stubs, as a macro for the build of the module that they describe.
//!
//! A stub is where type checkers and editors look, so that is where the texts are written. A build
//! script calls [`write()`], and `#[doc = stub_doc!("Endpoint.send")]` then gives the same text to
//! `help()` at run time, as a constant: it costs nothing on import. A name without a docstring is an
//! error of the compiler's.
//!
//! This reads stubs as ruff formats them, not Python.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

/// Writes `stub_docs.rs` to the build's output folder: the macro `stub_doc!`, of all stubs in a
/// folder
///
/// # Errors
///
/// As the system reports them, with the path.
pub fn write(stubs: &Path) -> io::Result<()> {
    println!("cargo::rerun-if-changed={}", stubs.display());
    let of_path = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"))
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(stubs).map_err(of_path(stubs))? {
        let stub = entry?.path();
        if stub.extension().is_some_and(|extension| extension == "pyi") {
            let text = fs::read_to_string(&stub).map_err(of_path(&stub))?;
            found.extend(docstrings(&text));
        }
    }
    found.sort();
    let folder = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    let target = Path::new(&folder).join("stub_docs.rs");
    fs::write(&target, macro_of(&found)).map_err(of_path(&target))
}

/// The macro: one arm for each name
fn macro_of(docstrings: &[(String, String)]) -> String {
    let mut source = String::from("macro_rules! stub_doc {\n");
    for (name, text) in docstrings {
        // Writing to a string cannot fail.
        let _ = writeln!(source, "    ({name:?}) => {{ {text:?} }};");
    }
    source.push_str("}\n");
    source
}

/// Names, such as `Endpoint`, `Endpoint.send` or `process_token`, and their docstrings
fn docstrings(stub: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut class = "";
    let mut owner = None;
    let mut lines = stub.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        let is_member = code.len() < line.len();
        if !is_member && !code.is_empty() && !code.starts_with(')') {
            class = "";
        }
        if let Some(name) = code.strip_prefix("class ").map(identifier) {
            class = name;
            owner = Some(name.to_owned());
        } else if let Some(name) = code.strip_prefix("def ").map(identifier) {
            owner = Some(if is_member {
                format!("{class}.{name}")
            } else {
                name.to_owned()
            });
        } else if let Some(rest) = code.strip_prefix(QUOTES)
            && let Some(name) = owner.take()
        {
            let indent = line.len() - code.len();
            found.push((name, docstring(rest, indent, &mut lines)));
        }
    }
    found
}

/// The rest of a docstring, without the indent of its lines
fn docstring<'a>(first: &str, indent: usize, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut line = first;
    while !line.ends_with(QUOTES) {
        text.push_str(line);
        text.push('\n');
        let Some(next) = lines.next() else {
            return text;
        };
        line = next.get(indent..).unwrap_or_default();
    }
    text.push_str(line.trim_end_matches('"'));
    text.trim_end().to_owned()
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    &text[..end.unwrap_or(text.len())]
}

const QUOTES: &str = "\"\"\"";

#[cfg(test)]
mod tests {
    use super::*;

    const STUB: &str = r#""""The module."""

class Peer(Generic[T]):
    """One peer.

    Parameters
    ----------
    name : str
    """

    def send(
        self, what: str
    ) -> None:
        """Send "it"."""

    def bare(self) -> None: ...

def count() -> int:
    """Count."""
"#;

    #[test]
    fn names_come_with_their_docstrings() {
        let found = docstrings(STUB);
        let found: Vec<_> = found
            .iter()
            .map(|(n, t)| (n.as_str(), t.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("Peer", "One peer.\n\nParameters\n----------\nname : str"),
                ("Peer.send", "Send \"it\"."),
                ("count", "Count."),
            ]
        );
    }

    #[test]
    fn the_macro_has_an_arm_for_each_name() {
        let source = macro_of(&[("Peer.send".to_owned(), "Send \"it\".\n".to_owned())]);
        assert_eq!(
            source,
            "macro_rules! stub_doc {\n    (\"Peer.send\") => { \"Send \\\"it\\\".\\n\" };\n}\n"
        );
    }
}
