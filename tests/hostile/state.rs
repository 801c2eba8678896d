//! The secrets that a copy of a laptop's state directory would tell, and a check that the page on security names an existing test
//! for each of its claims.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::common::Sandbox;

const SECRET: &str = "CANARYSECRET";

/// Every way in which a user may be signed in, all of them in force while jobs of every state are made.
const VARIABLES: [&str; 6] = [
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_CLIENT_SECRET",
    "GITHUB_TOKEN",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN",
];

const FILES: [(&str, &str); 3] = [
    (".azure/msal_token_cache.json", r#"{"RefreshToken":{"a":{"secret":"CANARYSECRET"}}}"#),
    (".config/gcloud/application_default_credentials.json", r#"{"type":"authorized_user","refresh_token":"CANARYSECRET"}"#),
    (".docker/config.json", r#"{"auths":{"registry.example":{"auth":"CANARYSECRET"}}}"#),
];

#[test]
fn a_state_directory_holds_no_sign_in() {
    let sandbox = Sandbox::new();
    sandbox.write_rehearsal("secret");
    for (name, text) in FILES {
        let path = sandbox.home().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let lives: [&[&str]; 8] = [
        &["plan", "job.toml"],
        &["up", "job.toml"],
        &["submit", "job.toml"],
        &["status"],
        &["submit", "job.toml", "--set", "name=waited", "--wait"],
        &["download", "waited", "--to", "model"],
        &["doctor", "--job", "job.toml"],
        &["down", "secret", "-y"],
    ];
    for arguments in lives {
        let said = Sandbox::said(sandbox.command(arguments).envs(VARIABLES.map(|name| (name, SECRET))));
        assert!(said.code == Some(0) || arguments[0] == "doctor", "{arguments:?}: {}", said.stderr);
    }
    let kept = [files(&sandbox.state()), files(&sandbox.home().join(".cache"))].concat();
    for part in ["store/ftctl/v1/jobs/secret-", "store/ftctl/v1/jobs/waited-", "store/ftctl/v1/datasets/"] {
        assert!(kept.iter().any(|file| file.to_str().unwrap().contains(part)), "the embedded store lies in it: {part}");
    }
    for file in kept {
        let bytes = fs::read(&file).unwrap();
        assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes()), "{}", file.display());
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn the_page_on_security_names_tests_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/security.md")).unwrap();
    let folders = ["tests/hostile", "tests/program", "src", "trainer/src"].map(|folder| files(&root.join(folder)));
    let sources: String = folders.concat().iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let (_, tests) = page.split_once("shown by").expect("the tests");
    let named: Vec<&str> = tests.split('`').filter_map(|word| word.rsplit_once("::")).map(|(_, name)| name).collect();
    assert!(named.len() > 20, "the tests have names");
    let missing: Vec<_> = named.into_iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "docs/security.md names what is no test: {missing:?}");
    let (_, table) = page.split_once("| can they |").expect("the table");
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 10, "{rows:?}");
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        assert_eq!(cells.len(), 5, "{row}");
        for cell in &cells[1..] {
            let numbers: Vec<&str> =
                cell.split('[').skip(1).filter_map(|rest| rest.split_once(']')).map(|(number, _)| number).collect();
            let known = numbers.iter().all(|number| tests.contains(&format!("\n| {number} | `")));
            assert!(!numbers.is_empty() && known, "docs/security.md shows by no test: {cell} in {row}");
        }
    }
}
