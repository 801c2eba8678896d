//! Weights and text of a hub by their names: what is asked of it, what becomes of it, and what a hub cannot do.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{
    Said, Sandbox,
    hub::{Fault, Hub, TOKEN, sha256},
    model::write_model,
};

const MODEL: &str = "models/owner/tiny";
const TEXT: &str = "datasets/owner/tales";
const README: &str = "---\nconfigs:\n- config_name: long\n  data_files:\n  - split: train\n    path: long/train-*\n\
    \x20 - split: validation\n    path: long/validation.jsonl\n---\n# Tales\n";

struct Place {
    hub: Hub,
    sandbox: Sandbox,
}

impl Place {
    /// A model and a dataset on a hub, and a job on the fake cloud that names both.
    fn new() -> Self {
        let (hub, sandbox) = (Hub::start(), Sandbox::in_memory());
        write_model(&sandbox.path("model"));
        hub.commit_directory(MODEL, &sandbox.path("model"));
        std::fs::remove_dir_all(sandbox.path("model")).expect("removed");
        let place = Self { hub, sandbox };
        place.write_text("Once upon a time there was a small town by the sea.");
        place.sandbox.write("ftctl.toml", "backend = \"fake\"\n");
        place.write_job("hf:owner/tiny", "hf:owner/tales/long/train");
        place
    }

    fn write_text(&self, text: &str) -> String {
        let rows = |rows: usize| format!("{}\n", json!({ "text": text })).repeat(rows).into_bytes();
        self.hub.commit(
            TEXT,
            "main",
            &[
                ("README.md", README.into()),
                ("long/train-1.jsonl", rows(300)),
                ("long/train-0.jsonl", rows(200)),
                ("long/validation.jsonl", rows(100)),
                ("short/train.jsonl", rows(1)),
            ],
        )
    }

    fn write_job(&self, weights: &str, text: &str) {
        let validation = text.replace("/train", "/validation");
        self.sandbox.write(
            "job.toml",
            format!(
                "name = \"a\"\ninitial_weights = \"{weights}\"\n[data]\ntrain = [\"{text}\"]\nvalidation = [\"{validation}\"]\n\
                 [train]\nblock_size = 32\nsteps = 10\n"
            ),
        );
    }

    fn said(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Said {
        let mut command = self.sandbox.command(arguments);
        command.env("HF_ENDPOINT", self.hub.address()).env("HF_TOKEN", TOKEN).envs(variables.iter().copied());
        Sandbox::said(&mut command)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let said = self.said(&[arguments, &["-o", "json"]].concat(), &[]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        serde_json::from_str(&said.stdout).expect("JSON")
    }

    fn cache(&self, below: &str) -> PathBuf {
        self.sandbox.home().join(".cache/huggingface/hub").join(below)
    }

    /// The paths that were asked for since the last time, without their repository.
    fn asked(&self) -> Vec<String> {
        self.hub
            .calls()
            .into_iter()
            .filter(|call| !call.of_store)
            .map(|call| call.path.rsplit('/').next().unwrap_or_default().to_owned())
            .collect()
    }
}

/// A README is read whole, in memory.
#[test]
fn a_readme_that_is_none_is_not_fetched() {
    let place = Place::new();
    let readme = [README.as_bytes(), &vec![b'#'; 5 << 20]].concat();
    place.hub.commit(TEXT, "main", &[("README.md", readme), ("long/train-0.jsonl", b"{}".to_vec())]);
    let said = place.said(&["plan", "job.toml"], &[]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(
        said.stderr.contains("the README of owner/tales has ") && said.stderr.contains("ftctl reads at most 4 MiB"),
        "{}",
        said.stderr
    );
    assert!(place.hub.calls().iter().map(|call| call.sent).sum::<usize>() < 1 << 20);
}

#[test]
fn a_job_is_planned_by_headers_and_run_with_what_it_needs() {
    let place = Place::new();
    let told = place.json(&["plan", "job.toml"]);
    let commit = told["hub"]["models/owner/tiny@main"].as_str().expect("a commit").to_owned();
    assert_eq!(told["hub"].as_object().map(serde_json::Map::len), Some(2), "{told}");
    assert_eq!(told["hub_download"]["files"], 2, "config.json and the weights");
    let (weights, parameters) = (told["hub_download"]["bytes"].as_u64().expect("a number"), &told["numbers"]["parameters"]);
    assert_eq!(*parameters, json!(50_304 * 8 + 64 * 8 + (12 * 8 * 8 + 13 * 8) + 16), "by the header alone");
    assert!(told["numbers"]["tokens"].as_u64().is_some_and(|tokens| tokens > 1_000), "so little text is looked at: {told}");
    let planned: usize =
        place.hub.calls().iter().filter(|call| call.path.contains("safetensors") || call.of_store).map(|call| call.sent).sum();
    assert!(
        (planned as u64) < weights && !place.cache(&format!("models--owner--tiny/snapshots/{commit}/model.safetensors")).exists()
    );

    let said = place.said(&["run", "job.toml"], &[]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(said.stderr.contains("Fetching owner/tiny"), "{}", said.stderr);
    let calls = place.hub.calls();
    assert!(calls.iter().all(|call| call.token.as_deref() == (!call.of_store).then_some(&format!("Bearer {TOKEN}"))), "{calls:#?}");
    assert!(calls.iter().any(|call| call.of_store) && !calls.iter().any(|call| call.path.contains("tf_model")), "{calls:#?}");

    // The layout of Hugging Face's tools.
    let snapshot = place.cache(&format!("models--owner--tiny/snapshots/{commit}"));
    let bytes = std::fs::read(snapshot.join("model.safetensors")).expect("there");
    let link = std::fs::read_link(snapshot.join("model.safetensors")).expect("a link");
    assert_eq!(link.to_str(), Some(format!("../../blobs/{}", sha256(&bytes)).as_str()));
    assert_eq!(std::fs::read_to_string(place.cache("models--owner--tiny/refs/main")).expect("there"), commit);
    let tales =
        std::fs::read_dir(place.cache("datasets--owner--tales/snapshots")).expect("there").next().expect("one").expect("an entry");
    assert_eq!(std::fs::read_link(tales.path().join("long/train-0.jsonl")).expect("a link").components().count(), 5);
    assert!(!tales.path().join("short").exists(), "no one asked for it");

    // Everything is here: no hub is asked.
    let offline = [("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://127.0.0.1:9")];
    place
        .sandbox
        .write("job.toml", std::fs::read_to_string(place.sandbox.path("job.toml")).expect("read").replace("\"a\"", "\"b\""));
    for arguments in [["plan", "job.toml"], ["run", "job.toml"]] {
        let said = place.said(&arguments, &offline);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
    }
    assert_eq!(place.hub.calls(), []);
    place.write_job("hf:owner/tiny", "hf:owner/tales/train");
    let said = place.said(&["plan", "job.toml"], &offline);
    assert_eq!(said.code, Some(0), "the only configuration: {}", said.stderr);
    place.write_job("hf:owner/other", "hf:owner/tales/long/train");
    let said = place.said(&["plan", "job.toml"], &offline);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(
        said.stderr.contains("hf:owner/other is not in ") && said.stderr.contains("HF_HUB_OFFLINE forbids to ask the hub"),
        "{}",
        said.stderr
    );
}

#[test]
fn a_plan_refuses_weights_by_their_headers() {
    let place = Place::new();
    let mut config: Value = serde_json::from_str("{}").expect("JSON");
    write_model(&place.sandbox.path("other"));
    let text = std::fs::read_to_string(place.sandbox.path("other/config.json")).expect("read");
    config.clone_from(&serde_json::from_str(&text).expect("JSON"));
    config["n_embd"] = json!(16);
    place.sandbox.write("other/config.json", config.to_string());
    place.hub.commit_directory("models/owner/other", &place.sandbox.path("other"));
    place.write_job("hf:owner/other", "hf:owner/tales/long/train");
    let said = place.said(&["plan", "job.toml"], &[]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("initial weights: hf:owner/other"), "{}", said.stderr);
    assert!(said.stderr.contains("dimensions"), "{}", said.stderr);
    // Of a pickle nothing is known before it is here.
    std::fs::rename(place.sandbox.path("other/model.safetensors"), place.sandbox.path("other/pytorch_model.bin")).expect("renamed");
    place.hub.commit_directory("models/owner/other", &place.sandbox.path("other"));
    assert_eq!(place.json(&["plan", "job.toml"])["hub_download"]["files"], 2);
    let said = place.said(&["run", "job.toml"], &[]);
    assert!(said.code == Some(2) && said.stderr.contains("pytorch_model.bin"), "{:?}: {}", said.code, said.stderr);
    std::fs::remove_file(place.sandbox.path("other/pytorch_model.bin")).expect("removed");
    place.hub.commit_directory("models/owner/other", &place.sandbox.path("other"));
    let said = place.said(&["plan", "job.toml"], &[]);
    assert!(said.code == Some(2) && said.stderr.contains("hf:owner/other has none of model.safetensors"), "{}", said.stderr);
}

#[test]
fn text_of_the_hub_is_prepared_like_any_other() {
    let place = Place::new();
    let said =
        place.said(&["prepare", "hf:owner/tales/long/train", "--out", "out", "--tokenizer", "train", "--vocabulary", "300"], &[]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let description = std::fs::read_to_string(place.sandbox.path("out/dataset.json")).expect("there");
    let description: Value = serde_json::from_str(&description).expect("JSON");
    let [train, validation] = ["train", "validation"].map(|split| description[split]["documents"].as_u64().expect("a number"));
    assert_eq!(train + validation, 500, "both files");
}

/// The weights, the text, what is done to the hub, variables, the exit code and the message with what to do.
type Case<'c> = (&'c str, &'c str, &'c dyn Fn(&Hub), &'c [(&'c str, &'c str)], i32, &'c str);

#[test]
#[allow(clippy::too_many_lines)] // A table.
fn what_a_hub_refuses_is_told_with_what_to_do() {
    const TINY: &str = "hf:owner/tiny";
    const LONG: &str = "hf:owner/tales/long/train";
    let busy = |hub: &Hub| (0..4).for_each(|_| hub.spoil("/api/", Fault::Status(429, "Retry-After: 0")));
    let elsewhere = |to: &'static str| move |hub: &Hub| hub.spoil("/api/", Fault::Redirect(to.to_owned()));
    let listed = |name: &'static str| {
        move |hub: &Hub| {
            let file = json!({ "rfilename": name, "size": 1, "blobId": "0".repeat(40) });
            hub.spoil("/api/models", Fault::Answer(json!({ "sha": "0".repeat(40), "siblings": [file] })));
        }
    };
    let cases: [Case<'_>; 23] = [
        (
            "hf:owner/none",
            LONG,
            &|_| (),
            &[],
            3,
            "HOST has no model owner/none, or shows it to others only\n  fix: correct the name\n",
        ),
        (
            TINY,
            LONG,
            &|hub| hub.hide(MODEL),
            &[("HF_TOKEN", "")],
            3,
            "HOST has no model owner/tiny, or shows it to others only\n  fix: correct the name, or set HF_TOKEN to a token that may read it\n",
        ),
        (TINY, LONG, &|hub| hub.hide(MODEL), &[("HF_TOKEN", "hf_wrong")], 3, "HOST has no model owner/tiny"),
        (
            TINY,
            LONG,
            &|hub| hub.spoil("/api/", Fault::Status(401, "")),
            &[],
            4,
            "HOST does not take the token\n  fix: set HF_TOKEN to one that is still good",
        ),
        (
            TINY,
            LONG,
            &|hub| hub.spoil("/api/", Fault::Status(401, "")),
            &[("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")],
            4,
            "HOST shows owner/tiny only to those who sign in",
        ),
        (
            TINY,
            LONG,
            &|hub| hub.spoil("/api/", Fault::Status(403, "")),
            &[],
            4,
            "HOST does not show owner/tiny to the owner of this token",
        ),
        (
            "hf:owner/tiny@v2",
            LONG,
            &|_| (),
            &[],
            3,
            "owner/tiny of HOST has no revision `v2`\n  fix: look at ADDRESS/owner/tiny/tree/main",
        ),
        (TINY, LONG, &busy, &[], 7, "HOST has been asked too often (429)\n  fix: try again later"),
        (
            TINY,
            LONG,
            &|hub| hub.spoil("/api/", Fault::Status(429, "Retry-After: 3600")),
            &[],
            7,
            "HOST has been asked too often (429)",
        ),
        (
            TINY,
            LONG,
            &|hub| hub.spoil("/api/", Fault::Status(418, "")),
            &[],
            9,
            "HOST answers 418 for revision `main` of owner/tiny, which no hub does",
        ),
        (
            TINY,
            LONG,
            &elsewhere("http://203.0.113.9/x"),
            &[],
            9,
            "HOST redirects revision `main` of owner/tiny to where ftctl does not follow",
        ),
        (TINY, LONG, &elsewhere("file:///etc/passwd"), &[], 9, "to where ftctl does not follow"),
        (TINY, LONG, &listed("../../evil"), &[], 9, "it has a file with the name `../../evil`, which is not taken"),
        (TINY, LONG, &listed("/etc/evil"), &[], 9, "it has a file with the name `/etc/evil`, which is not taken"),
        (
            TINY,
            LONG,
            &|hub| hub.spoil("/api/", Fault::Answer(json!("x"))),
            &[],
            9,
            "the hub's list of owner/tiny@main cannot be used: ",
        ),
        (TINY, "hf:owner/tales/lang/train", &|_| (), &[], 3, "owner/tales has no configuration `lang`"),
        (TINY, "hf:owner/tales/long/test", &|_| (), &[], 3, "the configuration `long` of owner/tales has no split `test`"),
        ("hf:owner/../x", LONG, &|_| (), &[], 2, "`../x` is no name of the hub"),
        (
            TINY,
            "hf:tales",
            &|_| (),
            &[],
            2,
            "`tales` names no text of the hub: write OWNER/NAME/SPLIT, or OWNER/NAME/CONFIGURATION/SPLIT",
        ),
        (
            TINY,
            LONG,
            &|_| (),
            &[("HF_ENDPOINT", "http://203.0.113.9")],
            2,
            "HF_ENDPOINT is not the address of a hub: it is asked by https, and by http on this machine alone",
        ),
        (TINY, LONG, &|_| (), &[("HF_ENDPOINT", "https://user:word@hub.example")], 2, "it has a user, a password or a query"),
        (TINY, LONG, &|_| (), &[("HF_TOKEN", "a\u{7f}b")], 4, "the token for the hub has characters that no token has"),
        ("hf:gpt3", LONG, &|_| (), &[], 2, "`gpt3` is no name of the hub: it is written OWNER/NAME, as on its page"),
    ];
    for (weights, text, spoil, variables, code, message) in cases {
        // `plan` tells what it knows besides, unless the job file itself is wrong.
        for (verb, code) in [("run", code), ("plan", 2)] {
            let place = Place::new();
            spoil(&place.hub);
            place.write_job(weights, text);
            let said = place.said(&[verb, "job.toml"], variables);
            let message = message.replace("HOST", "127.0.0.1").replace("ADDRESS", &place.hub.address());
            let all = format!("{}{}", said.stdout, said.stderr);
            let is_told = said.stderr.contains(&message) || (verb == "plan" && message.lines().all(|line| all.contains(line)));
            assert!(said.code == Some(code) && is_told, "{verb}: {message:?} with {code}, not {:?}: {all}", said.code);
            assert!(!said.stderr.contains(TOKEN) && !said.stdout.contains(TOKEN));
        }
    }
}

#[test]
fn a_plan_is_told_while_the_hub_is_away() {
    let place = Place::new();
    let away = [("HF_ENDPOINT", "http://127.0.0.1:9")];
    let said = place.said(&["plan", "job.toml", "-o", "json"], &away);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    let told: Value = serde_json::from_str(&said.stdout).expect("the plan");
    assert_eq!(told["numbers"]["steps"], json!(10), "{told}");
    assert_eq!(told["initial_weights"], json!("hf:owner/tiny"));
    let missing: Vec<_> = told["missing"].as_array().expect("a list").iter().map(|finding| &finding["what"]).collect();
    assert_eq!(missing, ["initial weights", "data"], "{told}");
    assert!(told["missing"][0]["message"].as_str().is_some_and(|why| why.contains("cannot ask 127.0.0.1")), "{told}");
    assert!(told["missing"][0]["fix"].as_str().is_some_and(|fix| fix.contains("HF_HUB_OFFLINE")), "{told}");
    // The same of a cache that has nothing.
    let said = place.said(&["plan", "job.toml"], &[("HF_HUB_OFFLINE", "1")]);
    assert!(said.code == Some(2) && said.stdout.contains("10 steps of") && said.stdout.contains("missing"), "{}", said.stdout);
    let run = place.said(&["run", "job.toml"], &away);
    assert!(run.code == Some(7) && run.stdout.is_empty(), "{}", run.stderr);
}

#[test]
fn a_gated_model_names_the_page_where_to_agree() {
    let place = Place::new();
    place.hub.gate(MODEL);
    for (token, told) in [(TOKEN, "tiny, as the user whose token this is"), ("", "tiny, and set HF_TOKEN to your token")] {
        let said = place.said(&["run", "job.toml"], &[("HF_TOKEN", token)]);
        let page = format!("agree at {}/owner/{told}", place.hub.address());
        assert!(said.code == Some(4) && said.stderr.contains(&page), "{:?}: {}", said.code, said.stderr);
    }
    let said = place.said(&["plan", "job.toml"], &[]);
    let terms =
        "owner/tiny of 127.0.0.1 is for those who agreed to its owner's terms; so nothing was checked of the initial weights";
    assert!(said.code == Some(0) && said.stderr.contains(terms), "{:?}: {}", said.code, said.stderr);
}

#[test]
fn a_fetch_that_is_cut_goes_on_where_it_was() {
    let place = Place::new();
    assert_eq!(place.said(&["plan", "job.toml"], &[]).code, Some(0));
    place.hub.calls();
    let fetch = |arguments: &[&str]| place.said(arguments, &[]);
    place.hub.spoil("/repos/", Fault::Cut(100_000));
    place.hub.spoil("/repos/", Fault::Cut(50_000));
    place.hub.spoil("/repos/", Fault::Status(503, ""));
    let said = fetch(&["run", "job.toml"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let ranges: Vec<_> = place.hub.calls().into_iter().filter(|call| call.of_store).map(|call| call.range).collect();
    let from = |first: usize| Some(format!("bytes={first}-"));
    assert_eq!(ranges, [None, from(100_000), from(150_000), from(150_000)]);
}

#[test]
fn what_is_damaged_or_of_another_commit_is_not_taken() {
    let weights = |place: &Place| {
        let commit = place.json(&["plan", "job.toml"])["hub"]["models/owner/tiny@main"].as_str().expect("a commit").to_owned();
        place.cache(&format!("models--owner--tiny/snapshots/{commit}/model.safetensors"))
    };
    let cases: [(&str, Fault, i32, &str); 4] = [
        ("/repos/", Fault::Flip, 9, "model.safetensors of owner/tiny is damaged: its digest is "),
        ("model.safetensors", Fault::Header("X-Repo-Commit", "0000000000000000000000000000000000000000"), 0, ""),
        (
            "config.json",
            Fault::Header("X-Repo-Commit", "0000000000000000000000000000000000000000"),
            9,
            "the hub answers with that of another commit",
        ),
        ("config.json", Fault::Flip, 9, "config.json of owner/tiny is damaged"),
    ];
    for (path, fault, code, message) in cases {
        let place = Place::new();
        if path == "config.json" {
            place.hub.spoil(path, fault);
            let said = place.said(&["run", "job.toml"], &[]);
            assert!(said.code == Some(code) && said.stderr.contains(message), "{message} {:?}: {}", said.code, said.stderr);
            continue;
        }
        let at = weights(&place);
        place.hub.spoil(path, fault);
        let said = place.said(&["run", "job.toml"], &[]);
        assert!(said.code == Some(code) && said.stderr.contains(message), "{message} {:?}: {}", said.code, said.stderr);
        assert_eq!(at.exists(), code == 0, "{message}");
    }
    // What another program left half of, of other bytes, is fetched again.
    let place = Place::new();
    let at = weights(&place);
    std::fs::create_dir_all(place.cache("models--owner--tiny/blobs")).expect("a folder");
    let listed = place.hub.calls().into_iter().find(|call| call.of_store).expect("asked for its header").path;
    let digest = listed.rsplit('/').next().expect("a digest").to_owned();
    std::fs::write(place.cache(&format!("models--owner--tiny/blobs/{digest}.incomplete")), vec![7; 1000]).expect("written");
    assert_eq!(place.said(&["run", "job.toml"], &[]).code, Some(0));
    assert_eq!(sha256(&std::fs::read(at).expect("there")), digest);
}

#[test]
fn a_key_and_a_job_that_goes_on_see_the_same_bytes() {
    let place = Place::new();
    let submit = ["submit", "job.toml", "--wait", "--idempotency-key", "k"];
    let first = place.said(&submit, &[]);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    place.write_text("Twice upon a time.");
    let again = place.said(&submit, &[]);
    assert_eq!((again.code, again.stdout), (Some(0), first.stdout), "{}", again.stderr);
    let other = place
        .said(&["submit", "job.toml", "--wait", "--idempotency-key", "k", "--set", "initial_weights=\"hf:owner/tiny@main\""], &[]);
    assert_eq!(other.code, Some(12), "{}", other.stderr);
    let before = place.json(&["show", "a"]);
    place.hub.calls();
    let resumed = place.said(&["resume", "a", "--set", "train.steps=20", "--wait"], &[]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert_eq!(place.asked(), [""; 0], "its commits are known");
    assert_eq!(place.json(&["show", "a"])["plan"]["hub"], before["plan"]["hub"]);
}

#[test]
fn a_script_is_not_run_and_the_hubs_own_copy_is_taken() {
    let place = Place::new();
    let rows = vec![0; 5 << 20];
    place.hub.commit("datasets/owner/made", "main", &[("made.py", b"import os".to_vec()), ("README.md", b"# Made\n".to_vec())]);
    let copy = place.hub.commit(
        "datasets/owner/made",
        "refs/convert/parquet",
        &[("plain/train/0000.parquet", rows.clone()), ("plain/validation/0000.parquet", rows)],
    );
    place.write_job("hf:owner/tiny", "hf:owner/made/plain/train");
    let told = place.json(&["plan", "job.toml"]);
    assert_eq!(told["hub"]["datasets/owner/made@main"], json!(copy));
    assert!(told["hub_download"]["bytes"].as_u64() > Some(10 << 20), "{told}");
    assert!(place.sandbox.home().join(".cache").exists() && !place.asked().contains(&"made.py".to_owned()));
    let shown = place.said(&["plan", "job.toml"], &[]).stdout;
    assert!(shown.contains("to fetch") && shown.contains("in 4 files, when the job begins"), "{shown}");
}

/// Where the hub has no copy of their rows.
#[test]
fn a_dataset_of_a_script_alone_is_refused_with_the_way_out() {
    for script in ["made.py", "build.py"] {
        let place = Place::new();
        let files = [(script, b"import os".to_vec()), ("README.md", b"# Made\n".to_vec()), ("dataset_infos.json", b"{}".to_vec())];
        place.hub.commit("datasets/owner/made", "main", &files);
        place.write_job("hf:owner/tiny", "hf:datasets/owner/made/plain/train");
        let said = place.said(&["run", "job.toml"], &[]);
        let message =
            format!("owner/made has no rows in files: its {script} makes them, and no program of a repository is ever run");
        assert!(said.code == Some(3) && said.stderr.contains(&message), "{}", said.stderr);
        assert!(!place.asked().contains(&script.to_owned()));
    }
}

#[test]
fn adapters_of_the_hub_are_named_with_the_model_that_they_are_for() {
    let place = Place::new();
    let config = json!({ "peft_type": "LORA", "base_model_name_or_path": "openai-community/gpt2" }).to_string();
    let files = [("adapter_config.json", config.into_bytes()), ("adapter_model.safetensors", vec![0; 64]), ("README.md", vec![])];
    place.hub.commit("models/owner/lora", "main", &files);
    place.write_job("hf:models/owner/lora", "hf:owner/tales/long/train");
    let said = place.said(&["run", "job.toml"], &[]);
    for words in ["it has adapters of peft", "what they adapt is openai-community/gpt2", "owner/lora"] {
        assert!(said.code == Some(2) && said.stderr.contains(words), "{:?}: {}", said.code, said.stderr);
    }
}

#[test]
fn the_token_stays_on_its_host_and_the_users_word_counts_alone() {
    let place = Place::new();
    // A redirect on the hub itself keeps it; one to another port of this machine loses it.
    write_model(&place.sandbox.path("model"));
    place.hub.commit_directory("models/owner/old", &place.sandbox.path("model"));
    place.hub.spoil("/api/models/owner/old", Fault::Redirect("/api/models/owner/tiny/revision/main?blobs=true".to_owned()));
    let other = Hub::start();
    place.hub.spoil("config.json", Fault::Redirect(format!("http://localhost:{}/owner/tiny/config.json", other.port)));
    place.write_job("hf:owner/old", "hf:owner/tales/long/train");
    let said = place.said(&["plan", "job.toml"], &[]);
    assert_ne!(said.code, Some(0), "the stranger has no such file");
    let calls = place.hub.calls();
    assert!(calls.iter().filter(|call| !call.of_store).all(|call| call.token.is_some()), "{calls:#?}");
    let strangers = other.calls();
    assert!(!strangers.is_empty() && strangers.iter().all(|call| call.token.is_none()), "{strangers:#?}");

    // The token of the file that `hf auth login` writes.
    let home = place.sandbox.home().join(".cache/huggingface");
    std::fs::create_dir_all(&home).expect("a folder");
    std::fs::write(home.join("token"), format!("{TOKEN}\n")).expect("written");
    place.write_job("hf:owner/tiny", "hf:owner/tales/long/train");
    place.hub.hide(MODEL);
    let said = place.said(&["plan", "job.toml"], &[("HF_TOKEN", "")]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    for line in ["hf_endpoint = \"http://127.0.0.1:1\"\n", "[hub]\nendpoint = \"http://127.0.0.1:1\"\n"] {
        place.sandbox.write("ftctl.toml", format!("backend = \"fake\"\n{line}"));
        assert_eq!(place.said(&["plan", "job.toml"], &[]).code, Some(2), "no file has a say in it");
    }
}
