//! The import direction of ARCHITECTURE.md, and the modules that may print and exit.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A module (the longest prefix counts) and the modules of the crate that it may name.
const TABLE: &[(&str, &[&str])] = &[
    ("main", &["cli", "exit"]),
    ("lib", &[]),
    ("exit", &[]),
    (
        "cli",
        &[
            "lifecycle",
            "hub",
            "settings",
            "output",
            "agent",
            "provider",
            "store",
            "identity",
            "image",
            "docker",
            "devcloud",
            "transit",
            "job",
            "exit",
        ],
    ),
    ("lifecycle", &["provider", "store", "image", "hub", "job", "exit"]),
    ("provider", &["image", "docker", "catalogue", "store", "identity", "transit", "job"]),
    ("agent", &["store", "identity", "transit", "job"]),
    ("devcloud", &["catalogue", "job"]),
    ("output", &["job", "exit"]),
    ("settings", &["job"]),
    ("image", &["docker", "job"]),
    ("docker", &["transit", "job"]),
    ("hub", &["transit", "job"]),
    ("store", &["identity", "transit", "job"]),
    ("identity", &["transit"]),
    ("catalogue", &["job"]),
    ("transit", &["job"]),
    ("job", &[]),
];

#[test]
fn modules_import_only_what_the_table_allows() {
    let mut wrong = Vec::new();
    for file in sources() {
        let module = module_of(&file);
        let allowed = allowed(&module).unwrap_or_else(|| panic!("{module} is not in the table"));
        for (number, line) in product_lines(&file) {
            for path in crate_paths(&line) {
                let listed = top(&module) == top(&path) || allowed.iter().any(|prefix| covers(prefix, &path));
                if !listed || crosses_providers(&module, &path) {
                    wrong.push(format!("{}:{number}: {module} may not name crate::{path}: {}", file.display(), line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// A backend is a variant of `job::compute::Backend`: its name is for people, and for stored data.
#[test]
fn only_the_list_of_backends_and_their_own_folders_name_one() {
    let named = lines_with(
        |module| !["provider", "devcloud", "docker"].contains(&top(module)),
        |line| ["\"local\"", "\"docker\"", "\"gce\"", "\"azureml\"", "\"fake\""].iter().any(|name| line.contains(name)),
    );
    assert!(named.len() <= 1, "\n{}", named.join("\n"));
}

#[test]
fn the_nouns_read_no_file_and_share_no_state() {
    let reaches = ["fs::", "File::", "env::", "OnceLock", "LazyLock", "thread_local", "tokio", "Timestamp::now", "SystemTime"];
    let is_static = |line: &str| line.trim_start_matches("pub ").starts_with("static ");
    let wrong = lines_with(|module| top(module) == "job", |line| is_static(line) || reaches.iter().any(|word| line.contains(word)));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Where a phrase of one cloud may stand: behind that cloud's door.
#[test]
fn what_one_cloud_says_stands_behind_its_door() {
    let doors = [
        ("startup-script", &["provider::gce", "devcloud"][..]),
        ("computeMetadata", &["provider::gce", "devcloud"]),
        ("management.azure.com", &["identity"]),
        ("storage.azure.com", &["identity"]),
        ("api.azureml.ms", &["provider::azureml", "agent::azureml", "devcloud::azureml"]),
        ("AZUREML_", &["provider::azureml", "agent::azureml", "devcloud::azureml"]),
        ("scheduledevents", &["agent::azureml", "devcloud::azureml"]),
        ("MSI_ENDPOINT", &["identity", "devcloud::azureml"]),
        ("OBO_ENDPOINT", &["identity", "devcloud::azureml"]),
        ("169.254.169.254", &["provider::gce", "agent::azureml"]),
        ("Metadata-Flavor", &["provider::gce", "devcloud::gce"]),
        ("the studio", &["provider::azureml"]),
    ];
    for (phrase, rooms) in doors {
        let outside = |module: &str| !rooms.iter().any(|room| covers(room, module));
        let wrong = lines_with(outside, |line| line.contains(phrase));
        assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    }
}

fn lines_with(looks_at: impl Fn(&str) -> bool, has: impl Fn(&str) -> bool) -> Vec<String> {
    let files = sources().into_iter().filter(|file| looks_at(&module_of(file)));
    let lines = files.flat_map(|file| product_lines(&file).into_iter().map(move |(number, line)| (file.clone(), number, line)));
    lines.filter(|(.., line)| has(line)).map(|(file, number, line)| format!("{}:{number}: {line}", file.display())).collect()
}

#[test]
fn only_output_prints_and_only_main_exits() {
    let prints = ["println!", "print!(", "eprint", "stdout()", "stderr()", "dbg!"];
    let mut wrong = Vec::new();
    for file in sources() {
        let module = module_of(&file);
        for (number, line) in product_lines(&file) {
            let talks = top(&module) != "output" && prints.iter().any(|word| line.contains(word));
            let exits = module != "main" && line.contains("process::exit");
            if talks || exits {
                wrong.push(format!("{}:{number}: {}", file.display(), line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Files of `lifecycle` by the names of those that each uses. The ground is free to all: what `mod.rs` defines in capitals. Its
/// function `step`, and what that calls, is a file like any other, called `mod`.
fn lifecycle() -> BTreeMap<String, BTreeSet<String>> {
    let files: Vec<PathBuf> = sources().into_iter().filter(|file| module_of(file).starts_with("lifecycle")).collect();
    let name = |file: &Path| file.file_stem().expect("a name").to_string_lossy().into_owned();
    let names: BTreeSet<String> = files.iter().map(|file| name(file)).collect();
    let uses = |file: &PathBuf| {
        let lines: String = product_lines(file).into_iter().map(|(_, line)| line + "\n").collect();
        let paths = ["super::", "crate::lifecycle::"]
            .map(|root| lines.match_indices(root).map(|(at, _)| expand("", &lines[at + root.len()..])));
        let mut used: BTreeSet<String> = paths.into_iter().flatten().flatten().map(|path| top(&path).to_owned()).collect();
        if name(file) == "mod" {
            used = names.iter().filter(|other| lines.contains(&format!("=> {other}::"))).cloned().collect();
            used.extend(lines.contains("if supervise::").then(|| "supervise".to_owned()));
        }
        let used = used.into_iter().map(|used| if used == "step" { "mod".to_owned() } else { used });
        (name(file), used.filter(|used| names.contains(used) && *used != name(file)).collect())
    };
    files.iter().map(uses).collect()
}

#[test]
fn no_file_of_the_lifecycle_uses_one_that_uses_it() {
    let mut left = lifecycle();
    assert!(left["mod"].contains("supervise") && left["drive"].contains("mod") && left["supervise"].contains("decide"), "{left:?}");
    // A file that uses none of the remaining ones is taken away, until there is none such; a circle stays.
    while let Some(free) =
        left.iter().find(|(_, uses)| uses.iter().all(|used| !left.contains_key(used))).map(|(name, _)| name.clone())
    {
        left.remove(&free);
    }
    assert!(left.is_empty(), "these use each other: {left:#?}");
}

/// rustfmt holds code to it, and leaves comments as they are, those of other files too. The line of a table cannot be broken.
#[test]
fn comments_are_within_the_width_of_the_code() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let settings = fs::read_to_string(root.join("rustfmt.toml")).expect("rustfmt.toml");
    let width = settings.lines().find_map(|line| line.strip_prefix("max_width = ")?.parse().ok()).expect("a width");
    let is_table = |line: &str| line.trim_start_matches(['/', '!', '#', ' ']).starts_with('|');
    let mut wrong = Vec::new();
    for file in commented(&root) {
        let mark = if file.extension().is_some_and(|extension| extension == "rs") { "//" } else { "#" };
        let is_wide = |line: &str| line.trim_start().starts_with(mark) && line.chars().count() > width && !is_table(line);
        let text = fs::read_to_string(&file).expect("a source");
        wrong.extend(
            text.lines().enumerate().filter(|(_, line)| is_wide(line)).map(|(at, _)| format!("{}:{}", file.display(), at + 1)),
        );
    }
    assert!(wrong.is_empty(), "comments of more than {width} characters:\n{}", wrong.join("\n"));
}

/// A sentence is read faster when its subject comes first.
#[test]
fn doc_comments_begin_with_their_subject() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folders = ["src", "trainer", "tests", "benches", "fuzz/fuzz_targets"].map(|folder| files(&root.join(folder)));
    let mut wrong = Vec::new();
    for file in folders.concat().into_iter().chain([root.join("build.rs")]) {
        let text = fs::read_to_string(&file).expect("a source");
        wrong.extend(without_subject(&text).into_iter().map(|line| format!("{}:{line}", file.display())));
    }
    assert!(wrong.is_empty(), "doc comments that begin with What, As or Of:\n{}", wrong.join("\n"));
}

/// The numbers of the lines where a doc comment begins with such a word.
fn without_subject(text: &str) -> Vec<usize> {
    let (mut found, mut before) = (Vec::new(), "");
    for (at, line) in text.lines().enumerate() {
        let (mark, words) = line.trim_start().split_at_checked(3).unwrap_or_default();
        let begins = ["///", "//!"].contains(&mark) && mark != before;
        let first = words.trim_start().split(|c: char| !c.is_alphabetic()).next();
        if begins && matches!(first, Some("What" | "As" | "Of")) {
            found.push(at + 1);
        }
        before = mark;
    }
    found
}

#[test]
fn the_scan_sees_what_it_looks_for() {
    assert_eq!(crate_paths("use crate::{job::{plan::Plan, id}, exit::Exit};"), ["job::plan::Plan", "job::id", "exit::Exit"]);
    assert_eq!(crate_paths("let x = crate::store::open(crate::job::spec::X)"), ["store::open", "job::spec::X"]);
    let docs = "/// What it is.\n/// As it is.\nfn f() {}\n    //! Of it.\n/// Offers.\n// What code does.\n/// As\n";
    assert_eq!(without_subject(docs), [1, 4, 7]);
    assert!(sources().len() > 20, "the scan must find the sources");
    assert!(sources().iter().any(|file| module_of(file) == "provider::local" && !product_lines(file).is_empty()));
    assert!(crosses_providers("provider::local::agent", "provider::fake::Fake") || !provider_folder("provider::fake"));
    assert!(crosses_providers("lifecycle::supervise", "provider::local::Local"));
    assert!(!crosses_providers("provider::local::agent", "provider::local::Local"));
    assert!(!crosses_providers("provider::local::agent", "provider::error::Class"));
    assert!(covers("provider::registry", "provider::registry::open") && !covers("provider::registry", "provider::local"));
    assert_eq!(allowed("provider::local::agent"), allowed("provider"));
    assert_eq!(allowed("unheard"), None);
}

/// No provider names another, and only the registry names any.
fn crosses_providers(module: &str, path: &str) -> bool {
    let folder = |path: &str| path.split("::").take(2).collect::<Vec<_>>().join("::");
    let (here, there) = (folder(module), folder(path));
    here != "provider::registry" && provider_folder(&there) && here != there
}

/// A folder below `provider/` is a provider; a file there belongs to the seam.
fn provider_folder(path: &str) -> bool {
    path.strip_prefix("provider::").is_some_and(|name| source_root().join("provider").join(name).is_dir())
}

fn covers(prefix: &str, path: &str) -> bool {
    path == prefix || path.starts_with(&format!("{prefix}::"))
}

fn allowed(module: &str) -> Option<&'static [&'static str]> {
    TABLE.iter().filter(|(name, _)| covers(name, module)).max_by_key(|(name, _)| name.len()).map(|(_, allowed)| *allowed)
}

fn top(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn sources() -> Vec<PathBuf> {
    files(&source_root())
}

/// The Rust files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    below(folder).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// All files below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("src is readable") {
            let path = entry.expect("src is readable").path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(folder, &mut found);
    found.sort();
    found
}

/// Every file whose comments are ours: sources, scripts and settings, those beside the manifest too.
fn commented(root: &Path) -> Vec<PathBuf> {
    let is_meant = |file: &Path| {
        let extension = file.extension().unwrap_or_default();
        file.ends_with("tests/run") || ["rs", "toml", "py", "sh"].iter().any(|meant| extension == *meant)
    };
    let folders = ["src", "trainer", "tests", "benches", "docker", "templates"];
    let beside = fs::read_dir(root).expect("a folder").map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file());
    let below = folders.into_iter().flat_map(|folder| below(&root.join(folder)));
    let found: Vec<PathBuf> = beside.chain(below).filter(|file| is_meant(file)).collect();
    assert!(["Cargo.toml", "tests/run", "benches/gpu.py"].iter().all(|file| found.contains(&root.join(file))), "{found:?}");
    found
}

/// `src/provider/local/mod.rs` is `provider::local`.
fn module_of(file: &Path) -> String {
    let relative = file.strip_prefix(source_root()).expect("a file of src").with_extension("");
    let parts: Vec<String> = relative.iter().map(|part| part.to_string_lossy().into_owned()).filter(|part| part != "mod").collect();
    parts.join("::")
}

/// Lines with their numbers: comments and tests left out, a `use` over several lines joined.
fn product_lines(file: &Path) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    // `tests.rs`, and what lies in a folder `tests`.
    if module_of(file).split("::").any(|part| part == "tests") {
        return lines;
    }
    let mut open_use: Option<(usize, String)> = None;
    let text = fs::read_to_string(file).expect("src is readable");
    let mut after_test_mark = false;
    for (number, line) in text.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        // A module of tests ends its file; a mark above a file of tests stands anywhere.
        if std::mem::replace(&mut after_test_mark, line.starts_with("#[cfg(test)]")) && line.ends_with('{') {
            break;
        }
        if line.trim_start().starts_with("//") {
            continue;
        }
        let (start, mut statement) = open_use.take().unwrap_or((number, String::new()));
        statement.push_str(line.trim());
        let begins_use = statement.trim_start_matches("pub ").starts_with("use ");
        if begins_use && !statement.contains(';') {
            open_use = Some((start, statement));
        } else {
            lines.push((start, statement));
        }
    }
    lines
}

/// Every path behind `crate::`, groups spelt out.
fn crate_paths(line: &str) -> Vec<String> {
    line.match_indices("crate::").flat_map(|(at, word)| expand("", &line[at + word.len()..])).collect()
}

fn expand(prefix: &str, rest: &str) -> Vec<String> {
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
    let (path, rest) = rest.split_at(end);
    let joined = format!("{prefix}{path}");
    match rest.strip_prefix('{') {
        Some(group) if path.is_empty() || path.ends_with("::") => {
            members(group).iter().filter(|member| !member.is_empty()).flat_map(|member| expand(&joined, member)).collect()
        }
        _ => vec![joined.trim_end_matches("::").to_owned()],
    }
}

/// The comma-separated members of a group, up to its closing brace.
fn members(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(group[start..at].trim());
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(group[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}
