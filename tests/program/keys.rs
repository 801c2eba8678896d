//! A key of a submission stands for the bytes of its data and weights as well, and not for their paths alone.

use std::{fs, path::Path};

use crate::common::{Said, Sandbox, model::write_model};

fn submit(sandbox: &Sandbox, file: &str, key: &str) -> Said {
    sandbox.run(&["submit", file, "--wait", "--idempotency-key", key])
}

/// The files below a folder.
fn files(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

/// The first submission's id, and a check of what the same command says later: nothing is uploaded for it.
fn promise<'a>(sandbox: &'a Sandbox, file: &'a str) -> impl Fn(Option<&str>, &str) + 'a {
    let first = submit(sandbox, file, "A");
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let kept = || ["contents", "datasets"].map(|name| files(&sandbox.state().join("store/ftctl/v1").join(name)));
    let before = kept();
    move |refusal, words| {
        let said = submit(sandbox, file, "A");
        match refusal {
            None => assert!(said.code == Some(0) && said.stdout == first.stdout && said.stderr.contains(words), "{}", said.stderr),
            Some(what) => {
                let id = first.stdout.trim();
                let message = format!("error: the job {id} was given other data: {what}\n  fix: take another --idempotency-key\n");
                assert!(said.code == Some(12) && said.stderr.ends_with(&message), "{}", said.stderr);
            }
        }
        assert_eq!(kept(), before, "nothing is sent to find out");
    }
}

#[test]
fn a_key_is_a_promise_of_the_files_of_a_dataset() {
    let sandbox = Sandbox::in_memory();
    sandbox.write_rehearsal("bytes");
    let again = promise(&sandbox, "job.toml");
    let path = |name: &str| sandbox.path(name).display().to_string();
    sandbox.write("data/train.bin", "tokens");
    again(None, "is over: succeeded");
    sandbox.write("data/train.bin", "TOKENS");
    again(Some(&format!("dataset: {} changed", path("data/train.bin"))), "");
    sandbox.write("data/train.bin", "tokens");
    sandbox.write("data/more.bin", "tokens");
    again(Some(&format!("dataset: {} is new", path("data/more.bin"))), "");
    fs::rename(sandbox.path("data/train.bin"), sandbox.path("data/more.bin")).expect("renamed");
    again(Some(&format!("dataset: {} is new", path("data/more.bin"))), "");
    fs::rename(sandbox.path("data/more.bin"), sandbox.path("data/train.bin")).expect("renamed");
    fs::rename(sandbox.path("data"), sandbox.path("away")).expect("renamed");
    again(None, &format!("{} is not there any more, so it was not compared", path("data")));
    // Other data under another key is another job.
    fs::rename(sandbox.path("away"), sandbox.path("data")).expect("renamed");
    sandbox.write("data/train.bin", "TOKENS");
    assert_eq!(submit(&sandbox, "job.toml", "B").code, Some(0));
}

#[test]
fn a_key_is_a_promise_of_text_and_weights() {
    let sandbox = Sandbox::in_memory();
    sandbox.write("ftctl.toml", "backend = \"fake\"\n");
    write_model(&sandbox.path("weights"));
    let text = "The quick brown fox jumps over the lazy dog. ".repeat(200);
    sandbox.write("a.txt", &text);
    sandbox.write("b.txt", &text);
    let job =
        "name = \"words\"\ninitial_weights = \"weights\"\n[data]\ntrain = [\"*.txt\"]\n[train]\nsteps = 10\nblock_size = 32\n";
    sandbox.write("job.toml", job);
    let again = promise(&sandbox, "job.toml");
    let path = |name: &str| sandbox.path(name).display().to_string();
    // Its time of change says nothing.
    sandbox.write("b.txt", &text);
    again(None, "is over: succeeded");
    sandbox.write("b.txt", text.replace("fox", "cat"));
    again(Some(&format!("data: the text gives other tokens; the newest of its files is {}", path("b.txt"))), "");
    sandbox.write("b.txt", &text);
    let weights = sandbox.path("weights/model.safetensors");
    let mut bytes = fs::read(&weights).expect("weights");
    *bytes.last_mut().expect("a byte") = 1;
    fs::write(&weights, &bytes).expect("written");
    again(Some(&format!("initial_weights: {} changed", path("weights/model.safetensors"))), "");
    *bytes.last_mut().expect("a byte") = 0;
    fs::write(&weights, &bytes).expect("written");
    sandbox.write("weights/notes.bin", "no run reads this");
    again(None, "is over: succeeded");
    for name in ["a.txt", "b.txt"] {
        fs::remove_file(sandbox.path(name)).expect("removed");
    }
    again(None, "is not there any more, so it was not compared");
}

#[test]
fn what_up_has_uploaded_is_what_submit_runs_with() {
    let sandbox = Sandbox::in_memory();
    sandbox.write_rehearsal("waiting");
    let up = sandbox.run(&["up", "job.toml"]);
    assert_eq!(up.code, Some(0), "{}", up.stderr);
    sandbox.write("data/train.bin", "TOKENS");
    let said = sandbox.run(&["submit", "job.toml"]);
    let message = format!("the job {} was given other data: dataset: ", up.stdout.trim());
    assert!(said.code == Some(12) && said.stderr.contains(&message), "{}", said.stderr);
    assert!(said.stderr.contains(&format!("fix: end that job with `ftctl down {}`", up.stdout.trim())), "{}", said.stderr);
}
