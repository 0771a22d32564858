//! Every input that is kept runs again, in each of its targets.

use std::fs;
use std::path::Path;

use backhaul_fuzzing::TARGETS;

#[test]
fn every_input_that_is_kept_still_passes() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for target in TARGETS {
        let corpus = corpora.join(target.name);
        let entries = fs::read_dir(&corpus)
            .unwrap_or_else(|error| panic!("{} has no corpus: {error}", target.name));
        let mut inputs = 0;
        for entry in entries {
            let path = entry.expect("a folder that can be listed").path();
            let bytes = fs::read(&path).expect("a file that can be read");
            // The name of the input is in the output of the test if it fails.
            println!("{}", path.display());
            (target.run)(&bytes);
            inputs += 1;
        }
        assert!(inputs > 0, "the corpus of {} is empty", target.name);
    }
}

#[test]
fn no_corpus_is_left_without_a_target() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for entry in fs::read_dir(corpora).expect("there are corpora") {
        let name = entry.expect("a folder that can be listed").file_name();
        let name = name.to_string_lossy();
        assert!(backhaul_fuzzing::Target::named(&name).is_some(), "{name}");
    }
}
