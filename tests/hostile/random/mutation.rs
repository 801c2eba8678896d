//! Changes to the store by a user who may write to it. Nothing here reaches further than the scene: a verb that obeyed one of these
//! would change a canary, and no path climbs more than two folders without naming one.
//!
//! Long, because each kind of change is a few lines of one table.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::{ffi::OsStringExt as _, fs::symlink},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use fastrand::Rng;
use ftctl::job::{digest::Digest, id::path};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::{Value, json};

use super::scene::{NAMES, PROGRAM, Scene, walk};

/// A change, for the reader of the report.
pub struct Mutation {
    pub what: String,
    /// The jobs whose own files it changed.
    pub jobs: Vec<usize>,
}

/// Stands in a text of JSON for a value that serde would not write.
const HOLE: &str = "@hole@";

/// Larger than any memory, smaller than any disk: it has no blocks.
const HUGE: u64 = 8 << 30;

type Change = fn(&mut Hand<'_>) -> io::Result<String>;

/// With how often each is taken.
const CHANGES: &[(usize, Change)] = &[
    (16, |hand| hand.value()),
    (4, |hand| hand.borrowed_value()),
    (8, |hand| hand.manifest()),
    (2, |hand| hand.duplicate_key()),
    (2, |hand| hand.cut()),
    (1, |hand| hand.garbage()),
    (1, |hand| hand.removed()),
    (3, |hand| hand.swapped()),
    (2, |hand| hand.folder_for_a_file()),
    (4, |hand| hand.link_for_a_file()),
    (4, |hand| hand.link_for_a_folder()),
    (1, |hand| hand.pipe()),
    (2, |hand| hand.huge_file()),
    (3, |hand| hand.extra_file()),
    (4, |hand| hand.debt()),
    (3, |hand| hand.forged_name()),
    (3, |hand| hand.lines()),
    (1, |hand| hand.many_jobs()),
    (1, |hand| hand.other_time()),
];

/// One change to the store of the scene. One that an earlier one made impossible is reported as such.
pub fn random(dice: &mut Rng, scene: &Scene) -> Mutation {
    let changes: Vec<Change> = CHANGES.iter().flat_map(|(often, change)| vec![*change; *often]).collect();
    let change = changes[dice.usize(..changes.len())];
    let mut hand = Hand { dice, scene, jobs: Vec::new() };
    let what = change(&mut hand).unwrap_or_else(|error| format!("nothing: {error}"));
    Mutation { what, jobs: hand.jobs }
}

/// The hand that changes the store.
struct Hand<'a> {
    dice: &'a mut Rng,
    scene: &'a Scene,
    jobs: Vec<usize>,
}

impl Hand<'_> {
    /// Any value of any JSON file.
    fn value(&mut self) -> io::Result<String> {
        let (file, mut value) = self.json_file()?;
        let mut pointers = Vec::new();
        pointers_of(&value, String::new(), &mut pointers);
        let pointer = self.dice.choice(&pointers).cloned().unwrap_or_default();
        let Some(place) = value.pointer_mut(&pointer) else { return Ok("nothing".to_owned()) };
        let raw = self.raw(place);
        *place = HOLE.into();
        self.write(&file, value.to_string().replacen(&format!("\"{HOLE}\""), &raw, 1))?;
        Ok(format!("{} {pointer} = {}", self.told(&file), shortened(&raw)))
    }

    /// A value that the same place has in another file: another job's.
    fn borrowed_value(&mut self) -> io::Result<String> {
        let (file, mut value) = self.json_file()?;
        let kind = file.file_name().map(ToOwned::to_owned);
        let alike: Vec<_> =
            self.files().into_iter().filter(|other| other.file_name() == kind.as_deref() && *other != file).collect();
        let Some(other) = self.dice.choice(&alike) else { return Ok("nothing".to_owned()) };
        let other: Value = serde_json::from_slice(&read(other)?)?;
        let mut pointers = Vec::new();
        pointers_of(&other, String::new(), &mut pointers);
        let pointers: Vec<_> = pointers
            .iter()
            .filter(|pointer| value.pointer(pointer).is_some_and(|own| Some(own) != other.pointer(pointer)))
            .collect();
        let Some(pointer) = self.dice.choice(&pointers) else { return Ok("nothing".to_owned()) };
        if let (Some(place), Some(theirs)) = (value.pointer_mut(pointer), other.pointer(pointer)) {
            *place = theirs.clone();
        }
        self.write(&file, value.to_string())?;
        Ok(format!(
            "{} {pointer} of another: {}",
            self.told(&file),
            shortened(&value.pointer(pointer).cloned().unwrap_or_default().to_string())
        ))
    }

    /// The files that a manifest names. That of a dataset gets the digest that it then has, and everything that named the old one
    /// the new.
    fn manifest(&mut self) -> io::Result<String> {
        let manifests: Vec<_> = self.files().into_iter().filter(|file| file.ends_with("manifest.json")).collect();
        let file = self.any(&manifests)?;
        let mut manifest: Value = serde_json::from_slice(&read(&file)?)?;
        let what = self.entry(&mut manifest);
        let text = manifest.to_string().replacen(&format!("\"{HOLE}\""), &what, 1);
        self.write(&file, &text)?;
        let told = format!("{}: {}", self.told(&file), shortened(&text));
        let folder = file.parent().unwrap_or(Path::new("/"));
        let digest = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if folder.parent().is_some_and(|parent| parent.ends_with("datasets")) {
            let new = Digest::of(text.as_bytes());
            fs::rename(folder, folder.with_file_name(new.as_str()))?;
            for file in self.files().iter().filter(|file| file.extension().is_some_and(|kind| kind == "json")) {
                let text = String::from_utf8_lossy(&read(file)?).into_owned();
                if text.contains(&digest) {
                    fs::write(file, text.replace(&digest, new.as_str()))?;
                }
            }
        }
        Ok(told)
    }

    /// Answers what stands in the manifest's hole.
    fn entry(&mut self, manifest: &mut Value) -> String {
        let Some(files) = manifest.get_mut("files").and_then(Value::as_array_mut).filter(|files| !files.is_empty()) else {
            *manifest = HOLE.into();
            return "[]".to_owned();
        };
        let at = self.dice.usize(..files.len());
        let (mut entry, documents) = (files[at].clone(), self.canary("documents"));
        let climbing = format!("/../../{documents}");
        match self.dice.u8(..9) {
            0 => {
                entry["path"] = HOLE.into();
                files[at] = entry;
                return self.string();
            }
            1 => {
                entry["size"] = HOLE.into();
                files[at] = entry;
                return self.number();
            }
            2 => {
                let digests = [
                    climbing,
                    "0".repeat(63),
                    "F".repeat(64),
                    "0".repeat(64),
                    format!("{}/x", "0".repeat(62)),
                    String::new(),
                    documents,
                ];
                entry["sha256"] = self.dice.choice(digests).into();
                files[at] = entry;
            }
            3 => {
                entry["chunks"] = json!(vec!["0".repeat(64); self.dice.usize(..5)]);
                files[at] = entry;
            }
            4 => files.push(entry),
            5 => {
                let path = entry["path"].as_str().unwrap_or_default().to_owned();
                entry["path"] = format!("{path}/below").into();
                files.push(entry);
            }
            6 => {
                let names =
                    [".ftctl-partial-x", "../out2/x", "a/./b", "con", "x\u{1b}[2J", "\u{202e}txt", "A", "a", "a\\b", " ", "x\n"];
                entry["path"] = self.dice.choice(names).into();
                files.push(entry);
            }
            7 => {
                *files =
                    (0..20_000).map(|number| json!({ "path": number.to_string(), "size": 0, "sha256": entry["sha256"] })).collect();
            }
            _ => *files = Vec::new(),
        }
        String::new()
    }

    fn duplicate_key(&mut self) -> io::Result<String> {
        let (file, value) = self.json_file()?;
        let Some((key, own)) = value.as_object().and_then(|fields| self.dice.choice(fields)) else {
            return Ok("nothing".to_owned());
        };
        let raw = self.raw(own);
        self.write(&file, value.to_string().replacen('{', &format!("{{{}:{raw},", json!(key)), 1))?;
        Ok(format!("{} has {key} twice, first {}", self.told(&file), shortened(&raw)))
    }

    fn cut(&mut self) -> io::Result<String> {
        let file = self.file()?;
        let mut bytes = read(&file)?;
        let length = if self.dice.bool() { 0 } else { self.dice.usize(..=bytes.len()) };
        bytes.truncate(length);
        self.write(&file, bytes)?;
        Ok(format!("{} is cut to {length} bytes", self.told(&file)))
    }

    fn garbage(&mut self) -> io::Result<String> {
        let file = self.file()?;
        let bytes: Vec<u8> = (0..self.dice.usize(..5_000)).map(|_| self.dice.u8(..)).collect();
        self.write(&file, bytes)?;
        Ok(format!("{} is garbage", self.told(&file)))
    }

    fn removed(&mut self) -> io::Result<String> {
        let file = self.file()?;
        fs::remove_file(&file)?;
        Ok(format!("{} is removed", self.told(&file)))
    }

    fn swapped(&mut self) -> io::Result<String> {
        let file = self.file()?;
        let kind = file.file_name().map(ToOwned::to_owned);
        let alike: Vec<_> = self.files().into_iter().filter(|other| other.file_name() == kind.as_deref()).collect();
        let other = self.any(&alike)?;
        let (one, two) = (read(&file)?, read(&other)?);
        self.write(&file, two)?;
        self.write(&other, one)?;
        Ok(format!("{} and {} are swapped", self.told(&file), self.told(&other)))
    }

    fn folder_for_a_file(&mut self) -> io::Result<String> {
        let file = self.file()?;
        fs::remove_file(&file)?;
        fs::create_dir(&file)?;
        if self.dice.bool() {
            fs::write(file.join("x"), "x")?;
        }
        Ok(format!("{} is a folder", self.told(&file)))
    }

    fn link_for_a_file(&mut self) -> io::Result<String> {
        let file = self.file()?;
        let target = self.target(&file)?;
        fs::remove_file(&file)?;
        symlink(&target, &file)?;
        Ok(format!("{} is a link to {}", self.told(&file), target.display()))
    }

    fn link_for_a_folder(&mut self) -> io::Result<String> {
        let mut folders = Vec::new();
        walk(&self.scene.store(), &|_| true, &mut |path, metadata| {
            if metadata.is_dir() {
                folders.push(path.to_owned());
            }
        });
        folders.sort_by_key(|folder| self.told(folder));
        let temporary = self.scene.store().join(".ftctl/temporary");
        let folder = if self.dice.u8(..4) == 0 { temporary } else { self.any(&folders)? };
        self.touch(&folder);
        let target = self.target(&folder)?;
        let _ = fs::remove_dir_all(&folder);
        symlink(&target, &folder)?;
        Ok(format!("{} is a link to {}", self.told(&folder), target.display()))
    }

    /// Where a link leads.
    fn target(&mut self, from: &Path) -> io::Result<PathBuf> {
        let home = self.scene.home();
        let canaries = [
            "documents",
            "documents/letters",
            ".ssh",
            ".ssh/id_ed25519",
            ".ssh/authorized_keys",
            ".bashrc",
            "documents/new",
            PROGRAM,
        ];
        Ok(match self.dice.u8(..10) {
            0 => from.to_owned(),
            1 => "/dev/zero".into(),
            2 => "/proc/self/environ".into(),
            3 => self.file()?,
            _ => home.join(self.dice.choice(canaries).unwrap_or_default()),
        })
    }

    /// It has no writer.
    fn pipe(&mut self) -> io::Result<String> {
        let file = self.file()?;
        fs::remove_file(&file)?;
        mknodat(CWD, &file, FileType::Fifo, Mode::RWXU, 0)?;
        Ok(format!("{} is a pipe", self.told(&file)))
    }

    fn huge_file(&mut self) -> io::Result<String> {
        let file = self.file()?;
        fs::File::options().write(true).open(&file)?.set_len(HUGE)?;
        Ok(format!("{} has {HUGE} bytes", self.told(&file)))
    }

    fn extra_file(&mut self) -> io::Result<String> {
        let folders = ["debts", "names", "dataset-names", "jobs", "datasets", "contents"];
        let mut names: Vec<OsString> =
            ["\u{1b}[2J", "\u{202e}x.json", "a-bcdfgh", "a-bcdfgh.json", ".json", "x\ny.json", "-rf", "NUL", "id"]
                .map(Into::into)
                .into();
        names.extend([
            OsString::from("x".repeat(255)),
            OsString::from_vec(vec![0xff, b'.', b'j', b's', b'o', b'n']),
            (self.scene.jobs[0].clone() + ".json").into(),
        ]);
        let folder = self.scene.store().join("ftctl/v1").join(self.dice.choice(folders).unwrap_or_default());
        let path = folder.join(self.dice.choice(names).unwrap_or_default());
        let text = if self.dice.bool() { read(&self.file()?)? } else { b"{}".to_vec() };
        if self.dice.bool() {
            fs::create_dir_all(&path)?;
            fs::write(path.join("record.json"), text)?;
        } else {
            fs::create_dir_all(&folder)?;
            fs::write(&path, text)?;
        }
        Ok(format!("there is {}", self.told(&path)))
    }

    /// Machines that another user shall end.
    fn debt(&mut self) -> io::Result<String> {
        let (own, owes) = (self.id(), self.owner());
        let path = self.scene.store().join(format!("ftctl/v1/debts/{own}.json"));
        let debt =
            json!({ "schema": "ftctl.debt/1", "id": owes, "since": "2026-01-01T00:00:00Z", "why": "it did not answer\u{1b}[2J" });
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(&path, debt.to_string())?;
        Ok(format!("{} owes {}", self.told(&path), shortened(&owes)))
    }

    fn forged_name(&mut self) -> io::Result<String> {
        let (name, owner) = (self.dice.choice(NAMES).unwrap_or_default(), self.owner());
        let file = self.scene.store().join(path::name(name));
        let mut entry: Value = serde_json::from_slice(&read(&file)?)?;
        entry["id"] = owner.as_str().into();
        fs::write(&file, entry.to_string())?;
        Ok(format!("the name {name} is that of {}", shortened(&owner)))
    }

    /// The lines that a trainer would have written.
    fn lines(&mut self) -> io::Result<String> {
        let logs: Vec<_> =
            self.files().into_iter().filter(|file| file.ends_with("log") || file.ends_with("progress.jsonl")).collect();
        let file = self.any(&logs)?;
        let number = self.number();
        let line = match self.dice.u8(..5) {
            0 => format!(
                r#"{{"v":1,"time":{number},"event":"step","step":{number},"steps":{number},"loss":{number},"learning_rate":0.1,"gradient_norm":1,"tokens_per_second":{number},"mfu":0,"eta_seconds":{number}}}"#
            ),
            1 => format!(r#"{{"v":1,"time":1767225600,"event":"checkpoint","step":{number},"name":{}}}"#, self.string()),
            2 => "\u{1b}]52;c;QUJD\u{7}\u{1b}[2J\u{9b}31m\u{202e}".to_owned(),
            3 => "x".repeat(20 << 20),
            _ => "2026-01-01T00:00:00Z step 1/10 loss NaN\n".repeat(100_000),
        };
        let mut bytes = read(&file)?;
        bytes.extend(line.as_bytes());
        bytes.push(b'\n');
        self.write(&file, bytes)?;
        Ok(format!("{} ends with {}", self.told(&file), shortened(&line)))
    }

    fn many_jobs(&mut self) -> io::Result<String> {
        let record = read(&self.file_of("record.json")?)?;
        for number in 0..50 {
            let file = self.scene.store().join(format!("ftctl/v1/jobs/crowd{number}-bcdfgh/record.json"));
            fs::create_dir_all(file.parent().unwrap_or(&file))?;
            fs::write(file, &record)?;
        }
        Ok("there are 50 jobs more, with the record of another".to_owned())
    }

    /// Versions and ages are told by it.
    fn other_time(&mut self) -> io::Result<String> {
        let file = self.file()?;
        let time = if self.dice.bool() { SystemTime::UNIX_EPOCH } else { SystemTime::now() + Duration::from_secs(1 << 33) };
        fs::File::open(&file)?.set_modified(time)?;
        Ok(format!("{} is of {time:?}", self.told(&file)))
    }

    /// JSON of a value that does harm where it is believed: of the same type, so that it gets past the parser, or of any.
    fn raw(&mut self, instead_of: &Value) -> String {
        let same = self.dice.u8(..10) < 7;
        match instead_of {
            Value::String(_) if same => self.string(),
            Value::Number(_) if same => self.number(),
            Value::Array(items) if same => {
                let item = items.first().map_or_else(|| "0".to_owned(), Value::to_string);
                let times = if self.dice.bool() { 0 } else { (1 << 20) / item.len() };
                format!("[{}]", vec![item; times].join(","))
            }
            _ => match self.dice.u8(..7) {
                0 => "null".to_owned(),
                1 => "true".to_owned(),
                2 => "{}".to_owned(),
                3 => "[".repeat(100_000) + &"]".repeat(100_000),
                4 => r#"{"a":"#.repeat(10_000) + "1" + &"}".repeat(10_000),
                5 => self.number(),
                _ => self.string(),
            },
        }
    }

    fn number(&mut self) -> String {
        let numbers = [
            "0",
            "-1",
            "0.5",
            "10001",
            "2147483648",
            "4294967295",
            "4294967296",
            "9007199254740993",
            "9223372036854775807",
            "9223372036854775808",
            "18446744073709551615",
            "18446744073709551616",
            "1e308",
            "-1e308",
            "1e-320",
            "1e999",
        ];
        self.dice.choice(numbers).unwrap_or_default().to_owned()
    }

    /// With its quotes.
    fn string(&mut self) -> String {
        let (id, other, documents, program) = (self.id(), self.id(), self.canary("documents"), self.canary(PROGRAM));
        let stub = format!("http://127.0.0.1:{}/account/container", self.scene.stub.port);
        let texts = [
            id.clone(),
            format!("{id}/../{other}"),
            format!("{id}-a1"),
            format!("{id}/"),
            documents.clone(),
            program,
            self.canary(".ssh/id_ed25519"),
            format!("{id}/../../../../../../documents"),
            format!("file://{documents}"),
            stub,
            "azure://account/container".to_owned(),
            "x!=y".to_owned(),
            format!("{id} OR labels.x=y"),
            format!("\"{id}\""),
            "*".to_owned(),
            String::new(),
            " ".to_owned(),
            ".".to_owned(),
            "..".to_owned(),
            "a/../b".to_owned(),
            "-rf".to_owned(),
            "\0".to_owned(),
            "one\nerror: two".to_owned(),
            "\r".to_owned(),
            "\u{1b}[2J\u{1b}]0;x\u{7}".to_owned(),
            "\u{1b}]52;c;QUJD\u{7}".to_owned(),
            "\u{9b}31m".to_owned(),
            "\u{202e}txt.exe".to_owned(),
            "x".repeat(1 << 20),
            "\u{e9}".repeat(300),
            "0".repeat(64),
            "F".repeat(64),
            format!("{}/..", "0".repeat(64)),
            "0".repeat(63),
            "9999-12-30T22:00:00Z".to_owned(),
            "-009999-01-02T02:00:00Z".to_owned(),
            "1970-01-01T00:00:00Z".to_owned(),
            "18446744073709551615s".to_owned(),
            "999999999d".to_owned(),
            "99999999999999999999USD".to_owned(),
            "-5USD".to_owned(),
            "1e308USD".to_owned(),
            "$(id)".to_owned(),
            "C:\\x".to_owned(),
            "planned".to_owned(),
            "provisioning".to_owned(),
            "running".to_owned(),
            "collecting".to_owned(),
            "tearing_down".to_owned(),
            "finished".to_owned(),
            "local".to_owned(),
            "docker".to_owned(),
            "fake".to_owned(),
            "nowhere".to_owned(),
            "ftctl.record/9".to_owned(),
        ];
        json!(self.dice.choice(texts)).to_string()
    }

    /// An entry's possible words on its owner.
    fn owner(&mut self) -> String {
        if self.dice.bool() { self.id() } else { serde_json::from_str(&self.string()).unwrap_or_default() }
    }

    fn id(&mut self) -> String {
        self.dice.choice(&self.scene.jobs).cloned().unwrap_or_default()
    }

    fn canary(&self, name: &str) -> String {
        self.scene.home().join(name).display().to_string()
    }

    /// The files of the store, in an order that ids and digests do not change.
    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        walk(&self.scene.store(), &|_| true, &mut |path, metadata| {
            if metadata.is_file() && !path.to_string_lossy().contains("/locks/") {
                files.push(path.to_owned());
            }
        });
        files.sort_by_cached_key(|file| self.told(file));
        files
    }

    /// Any file; of each kind as often as of another.
    fn file(&mut self) -> io::Result<PathBuf> {
        let files = self.files();
        let mut kinds: Vec<_> = files.iter().map(|file| kind(file)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let kind_of_it = self.dice.choice(&kinds).cloned().unwrap_or_default();
        self.any(&files.iter().filter(|file| kind(file) == kind_of_it).cloned().collect::<Vec<_>>())
    }

    /// Most verbs read records.
    fn json_file(&mut self) -> io::Result<(PathBuf, Value)> {
        let file = if self.dice.u8(..3) == 0 { self.file_of("record.json")? } else { self.file()? };
        let value = serde_json::from_slice(&read(&file)?)?;
        Ok((file, value))
    }

    fn file_of(&mut self, name: &str) -> io::Result<PathBuf> {
        self.any(&self.files().into_iter().filter(|file| file.ends_with(name)).collect::<Vec<_>>())
    }

    fn any(&mut self, paths: &[PathBuf]) -> io::Result<PathBuf> {
        let path = self.dice.choice(paths).cloned().ok_or(io::ErrorKind::NotFound)?;
        self.touch(&path);
        Ok(path)
    }

    /// Remembers whose file it is; a folder of all jobs is everybody's.
    fn touch(&mut self, path: &Path) {
        let text = path.to_string_lossy().into_owned();
        let everybody = self.scene.store().join("ftctl/v1/jobs").starts_with(path);
        let own = self.scene.jobs.iter().enumerate().filter(|(_, id)| everybody || text.contains(&format!("jobs/{id}")));
        self.jobs.extend(own.map(|(job, _)| job));
    }

    fn write(&mut self, file: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.touch(file);
        fs::write(file, bytes)
    }

    /// The path of a file without what is random in it.
    fn told(&self, path: &Path) -> String {
        let path = path.strip_prefix(self.scene.store()).unwrap_or(path).to_string_lossy().replace("ftctl/v1/", "");
        let path = self.scene.jobs.iter().zip(NAMES).fold(path, |path, (id, name)| path.replace(id, name));
        let part = |part: &str| if part.len() == 64 { "#".to_owned() } else { part.to_owned() };
        path.split('/').map(part).collect::<Vec<_>>().join("/")
    }
}

/// The kind of a file: its name, without names and digests.
fn kind(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = file.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
    match folder.as_str() {
        "names" | "dataset-names" | "debts" => folder,
        _ if name.len() == 64 => "content".to_owned(),
        _ => name,
    }
}

/// Only what an earlier change left as a file of some size.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let metadata = fs::symlink_metadata(file)?;
    if metadata.is_file() && metadata.len() < 64 << 20 { fs::read(file) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn pointers_of(value: &Value, pointer: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| pointers_of(value, format!("{pointer}/{key}"), found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, value)| pointers_of(value, format!("{pointer}/{at}"), found));
        }
        _ => {}
    }
    found.push(pointer);
}

fn shortened(text: &str) -> String {
    let start: String = text.chars().take(160).collect();
    start.escape_debug().to_string()
}
