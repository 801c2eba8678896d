//! The parsers of bytes from outside, each as those that use it call it. `fuzz/` gives them bytes that it makes up, `corpora.rs`
//! those that were worth keeping. Whatever comes, they answer: there is no panic, no hang, and no memory beyond what the bytes are
//! worth.
//!
//! Not here: answers of which one field is taken out of a JSON value of limited size, as those of most token services are, and the
//! messages of the user's own Docker Engine.

use std::{
    fs,
    future::Future,
    path::{Component, Path},
    sync::Arc,
    time::Duration,
};

use ft_trainer::{
    data::{
        prepare,
        shard::Dataset,
        text::{Reading, documents},
        tokenizer::Tokenizer,
    },
    model::{
        shape::Shape,
        weights::{TensorFile, model_files},
    },
    settings::{OnBadRow, lora::Lora},
    state::State,
};
use ftctl::{
    agent,
    docker::credentials,
    hub, identity,
    job::{
        clock::Clock as _,
        digest::Digest,
        document::Document,
        foreign,
        hub::HubName,
        id::{JobId, path},
        image::ImageSpec,
        meeting::{Presence, Rendezvous},
        order::{CancelRequest, ExitRecord, Heartbeat, RunOrder},
        plan::{Choices, Plan},
        record::Record,
        report::Silent,
        spec::JobSpec,
        units::Span,
    },
    lifecycle::{console, curves, debt, journal, receipt, results},
    provider::{azureml, clock::SystemClock, gce, registry, whose::Party},
    settings::{Layer, Settings, Surroundings},
    store::{
        Condition, Store, artifacts, azure, checkpoint, dataset, find_json,
        lease::{Contender, Holder},
        memory::MemoryStore,
    },
};

/// The name of its folder in `fuzz/corpus`, and its parser.
pub type Parser = (&'static str, fn(&[u8]));

pub const PARSERS: &[Parser] = &[
    ("record", record),
    ("progress", progress),
    ("order", order),
    ("dataset", dataset_manifest),
    ("checkpoint", checkpoint_manifest),
    ("artifacts", artifacts_manifest),
    ("lease", lease),
    ("heartbeat", value::<Heartbeat>),
    ("exit", value::<ExitRecord>),
    ("cancel", value::<CancelRequest>),
    ("rendezvous", value::<Rendezvous>),
    ("presence", value::<Presence>),
    ("console", kept_console),
    ("debt", debts),
    ("name", name),
    ("job_file", job_file),
    ("settings", settings),
    ("command", command),
    ("deepspeed", deepspeed),
    ("azureml_job", azureml_job),
    ("workspace", workspace),
    ("model", model),
    ("shards", shards),
    ("vocabulary", vocabulary),
    ("tokenizer", tokenizer),
    ("csv", csv),
    ("json", json),
    ("jsonl", jsonl),
    ("parquet", parquet),
    ("packed", packed),
    ("torch", torch),
    ("safetensors", torch),
    ("token_file", token_file),
    ("hub", hub_answer),
    ("listing", listing),
    ("batch", batch),
    ("token", token),
    ("compute_engine", compute_engine),
    ("azureml", azureml_answer),
    ("preemptions", preemptions),
    ("state", state),
    ("weights_index", weights_index),
    ("adapter", adapter),
    ("docker", docker),
];

fn id() -> JobId {
    JobId::parse("fuzzed-bcdfgh").expect("an id")
}

/// Polls a future that never waits: a store in memory answers at once.
fn now<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(work)
}

/// A store with one object.
async fn stored(path: &str, bytes: &[u8]) -> Arc<dyn Store> {
    let store = MemoryStore::new();
    store.put(path, bytes.to_vec().into(), Condition::Always).await.expect("written");
    Arc::new(store)
}

fn record(bytes: &[u8]) {
    now(async {
        let store = stored(&path::record(&id()), bytes).await;
        if let Ok((record, _)) = journal::read(&*store, &id()).await {
            let _ = receipt::receipt(&record, SystemClock.now());
        }
    });
}

/// A trainer's progress lines, of a job with one attempt.
fn progress(bytes: &[u8]) {
    now(async {
        let store = stored(&path::progress(&id(), 1), bytes).await;
        let record = record_of_one_attempt();
        let _ = (results::of(&*store, &record).await, curves::of(&*store, &record).await);
    });
}

fn record_of_one_attempt() -> Record {
    let mut record = journal::decode(&id(), include_bytes!("../../fuzz/corpus/record/finished")).expect("a record");
    record.attempt = 1;
    record
}

fn order(bytes: &[u8]) {
    let _ = serde_json::from_slice::<RunOrder>(bytes);
}

fn dataset_manifest(bytes: &[u8]) {
    let digest = Digest::of(bytes);
    now(async {
        let store = stored(&path::dataset_manifest(&digest), bytes).await;
        let _ = dataset::verify(&store, &digest, &Silent).await;
    });
}

fn checkpoint_manifest(bytes: &[u8]) {
    now(async {
        let store = stored(&format!("{}/manifest.json", path::checkpoint(&id(), 5)), bytes).await;
        let _ = checkpoint::latest(&*store, &id()).await.map(|found| found.map(|manifest| manifest.bytes()));
    });
}

fn artifacts_manifest(bytes: &[u8]) {
    now(async {
        let store = stored(&format!("{}/manifest.json", path::artifacts(&id())), bytes).await;
        let _ = artifacts::files(&*store, &id()).await;
    });
}

fn lease(bytes: &[u8]) {
    now(async {
        let store = stored("lease", bytes).await;
        let holder = Holder::this_process(1);
        let _ = Contender::new(store, "lease".to_owned(), holder, Duration::from_secs(60)).acquire().await;
    });
}

/// A value that an agent or a user writes for the others. It is read whole.
fn value<T: serde::de::DeserializeOwned>(bytes: &[u8]) {
    now(async {
        let store = stored("value.json", bytes).await;
        let _ = find_json::<T>(&*store, "value.json").await;
    });
}

fn kept_console(bytes: &[u8]) {
    now(async {
        let store = stored(&path::console(&id(), 1), bytes).await;
        for from in [0, 7] {
            if let Ok(Some(console)) = console::kept(&*store, &record_of_one_attempt(), 1, from).await {
                let (_, next) = console::in_lines(&console, from, true);
                assert!(next >= from, "a console is read forwards");
            }
        }
    });
}

fn debts(bytes: &[u8]) {
    now(async {
        let store = stored(&path::debt(&id()), bytes).await;
        let _ = debt::all(&*store).await;
    });
}

fn name(bytes: &[u8]) {
    now(async {
        let store = stored(&path::dataset_name("fuzzed"), bytes).await;
        let _ = dataset::named(&*store, "fuzzed").await;
    });
}

fn job_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(document) = Document::new("job.toml", text.into()) else { return };
    let Ok(spec) = JobSpec::read(&document, registry::rules) else { return };
    let (image, ttl) = (ImageSpec::default(), Span(Duration::from_secs(3_600)));
    let choices = Choices { backend: "fake".to_owned(), image, store: "memory:".to_owned(), ttl, max_cost: None, max_wait: ttl };
    for name in registry::names() {
        let compute = registry::compute(name, &spec.compute).expect("a known backend");
        let _ = Plan::resolve(&spec, compute, choices.clone(), Path::new("/nowhere"));
    }
}

fn settings(bytes: &[u8]) {
    let folder = folder(&[("ftctl.toml", bytes)]);
    let around = Surroundings { variable: &|_| None, home: None, working_directory: folder.path().to_owned() };
    let _ = Settings::load(Layer::default(), &around);
}

fn command(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = foreign::translate(text, &|_| Err("there is none".to_owned()));
    }
}

/// DeepSpeed's own file.
fn deepspeed(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let command = "deepspeed run_clm.py --model_name_or_path gpt2 --train_file a.txt --output_dir out --deepspeed ds.json";
        let _ = foreign::translate(command, &|_| Ok(text.to_owned()));
    }
}

/// The `config.json` of an Azure ML workspace.
fn workspace(bytes: &[u8]) {
    let _ = azureml::places_of(&folder(&[("config.json", bytes)]).path().join("config.json"));
}

fn azureml_job(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(job) = foreign::azureml::translate(text, "job.yml", Path::new(""), &|_| Err("there is none".to_owned())) {
        // A job file, whatever its values are worth.
        Document::new("job.toml", job.text.into()).and_then(|document| document.parse::<toml::Table>().map(drop)).expect("TOML");
    }
}

fn model(bytes: &[u8]) {
    let _ = Shape::read(folder(&[("config.json", bytes)]).path());
}

/// A dataset whose tokens are those bytes again.
fn shards(bytes: &[u8]) {
    let folder = folder(&[("dataset.json", bytes), ("train-00000.tokens", bytes), ("validation-00000.tokens", bytes)]);
    if let Ok(dataset) = Dataset::open(folder.path()) {
        let _ = dataset.verify();
    }
}

/// A file of tensors; its content tells whose.
fn torch(bytes: &[u8]) {
    let folder = folder(&[("pytorch_model.bin", bytes)]);
    if let Ok(file) = TensorFile::open(&folder.path().join("pytorch_model.bin")) {
        for name in file.names() {
            let entry = file.entry(&name).expect("a tensor of the file");
            assert!(entry.bytes.is_empty() || !file.bytes(entry).is_empty(), "{name} is in it");
        }
    }
}

/// nanoGPT's, and llm.c's, and fairseq's with the same bytes for everything.
fn token_file(bytes: &[u8]) {
    for format in ["nanogpt", "llm-c", "fairseq"] {
        let folder = folder(&[("train.bin", bytes), ("train.idx", bytes), ("dict.txt", bytes)]);
        if format != "fairseq" {
            fs::remove_file(folder.path().join("dict.txt")).expect("removed");
        }
        let config = serde_json::json!({ "format": format, "train": [folder.path().join("train.bin")] });
        let config = serde_json::from_value(config).expect("a table");
        let _ = prepare::prepare(&config, None, &folder.path().join("out"), &mut |_, _, _| ());
    }
}

/// The two files of GPT-2's, with a zero byte between them.
fn vocabulary(bytes: &[u8]) {
    let (vocabulary, merges) = bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    tokenized(&[("vocab.json", vocabulary), ("merges.txt", merges.get(1..).unwrap_or_default())]);
}

fn tokenizer(bytes: &[u8]) {
    tokenized(&[("tokenizer.json", bytes)]);
}

fn tokenized(files: &[(&str, &[u8])]) {
    if let Ok(tokenizer) = Tokenizer::load(folder(files).path()) {
        let _ = tokenizer.decode(&tokenizer.encode("Once upon a time, in 1996."));
    }
}

fn csv(bytes: &[u8]) {
    rows("rows.csv", bytes);
}

fn json(bytes: &[u8]) {
    rows("rows.json", bytes);
}

fn packed(bytes: &[u8]) {
    rows("rows.jsonl.gz", bytes);
}

fn jsonl(bytes: &[u8]) {
    rows("rows.jsonl", bytes);
}

fn parquet(bytes: &[u8]) {
    rows("rows.parquet", bytes);
}

fn rows(name: &str, bytes: &[u8]) {
    let folder = folder(&[(name, bytes)]);
    for on_bad_row in [OnBadRow::Fail, OnBadRow::Skip] {
        let reading = Reading { on_bad_row, ..Reading::default() };
        let _ = documents(&folder.path().join(name), &reading, &mut |_| Ok(()));
    }
}

fn listing(bytes: &[u8]) {
    let _ = azure::read_answer(bytes);
}

/// The `Content-Type` of a reply, and on the next lines the reply to many deletions at once.
fn batch(bytes: &[u8]) {
    let (kind, body) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    let _ = azure::read_batch(&String::from_utf8_lossy(kind), body);
}

/// An answer of the token service of an Azure ML job.
fn token(bytes: &[u8]) {
    let _ = identity::read_token(bytes);
}

/// A list of files and the README of a dataset, with a zero byte between them.
fn hub_answer(bytes: &[u8]) {
    let (answer, readme) = bytes.split_at(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    let name = HubName::of_data("hf:owner/texts/train").expect("a name of the hub").expect("a name");
    let readme = String::from_utf8_lossy(readme.get(1..).unwrap_or_default());
    for file in hub::read_answer(&name, answer, &readme).unwrap_or_default() {
        assert!(Path::new(&file.path).components().all(|part| matches!(part, Component::Normal(_))), "{}", file.path);
    }
}

fn compute_engine(bytes: &[u8]) {
    now(async {
        let party = party();
        let _ = gce::read_answer(&party.mark().await.expect("a store's identity"), bytes);
    });
}

fn azureml_answer(bytes: &[u8]) {
    now(async {
        let party = party();
        azureml::read_answer(&party.mark().await.expect("a store's identity"), bytes);
    });
}

fn party() -> Party {
    Party::new("me", Arc::new(MemoryStore::new()))
}

/// An answer of Azure's metadata service.
fn preemptions(bytes: &[u8]) {
    let _ = agent::preemptions(bytes);
}

fn state(bytes: &[u8]) {
    if let Ok(state) = State::read(folder(&[("trainer_state.json", bytes)]).path()) {
        let _ = state.updates();
    }
}

/// The list of the files with a model's weights.
fn weights_index(bytes: &[u8]) {
    let folder = folder(&[("model.safetensors.index.json", bytes), ("config.json", b"{}")]);
    for file in model_files::needed(folder.path()).unwrap_or_default() {
        assert_eq!(file.parent(), Some(folder.path()), "{}", file.display());
    }
}

fn adapter(bytes: &[u8]) {
    let _ = Lora::read(folder(&[("adapter_config.json", bytes)]).path());
}

fn docker(bytes: &[u8]) {
    let folder = folder(&[("config.json", bytes)]);
    // No helper is found: it would be a program.
    let _ = now(credentials::find(&[folder.path().join("config.json")], "registry.example/image"));
}

/// A folder with these files, in memory where the system has a place for that.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).expect("written");
    }
    folder
}
