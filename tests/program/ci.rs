//! The workflows of `docs/ci.md`: each is YAML, and its commands run as they stand there, on the fake cloud.

use std::{env, fs, path::Path, process::Command};

use saphyr_parser::Parser;

use crate::common::Sandbox;

/// The values that the services put in the place of their expressions.
const EXPRESSIONS: [(&str, &str); 4] = [
    ("${{ vars.FTCTL_REPOSITORY }}", "https://example.org/ftctl"),
    ("$(FTCTL_REPOSITORY)", "https://example.org/ftctl"),
    ("${{ vars.AZURE_TENANT_ID }}", "tenant"),
    ("${{ vars.AZURE_CLIENT_ID }}", "client"),
];
/// Keys of which the value is a script.
const SCRIPTS: [&str; 5] = ["- run:", "run:", "script:", "- script:", "inlineScript:"];

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ci.md")).expect("the page")
}

fn workflows(page: &str) -> Vec<String> {
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("\n```\n").next().expect("a block"));
    blocks.map(|block| EXPRESSIONS.iter().fold(block.to_owned(), |block, (from, to)| block.replace(from, to))).collect()
}

/// The scripts of a workflow in their order, each by its lines.
fn scripts(workflow: &str) -> Vec<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let lines: Vec<&str> = workflow.lines().collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let Some(rest) = SCRIPTS.iter().find_map(|key| line.trim_start().strip_prefix(key)) else { continue };
        let below = lines[number + 1..].iter().take_while(|below| indent(below) > indent(line));
        found.push(match rest.trim() {
            "|" => below.map(|line| line.trim()).collect::<Vec<_>>().join("\n"),
            "" => below.map(|line| line.trim().trim_start_matches("- ")).collect::<Vec<_>>().join("\n"),
            one => one.to_owned(),
        });
    }
    found
}

#[test]
fn binstall_looks_for_releases_where_the_page_says_they_are() {
    let manifest: toml::Table = include_str!("../../Cargo.toml").parse().expect("TOML");
    let binstall = &manifest["package"]["metadata"]["binstall"];
    let address =
        binstall["pkg-url"].as_str().expect("a template").replace("{ version }", "VERSION").replace("{ target }", "TARGET");
    let place = address.strip_prefix("{ repo }/").expect("below the repository");
    assert!(!place.contains('{') && page().contains(&format!("`{place}`")), "{place}");
    assert_eq!((binstall["pkg-fmt"].as_str(), binstall["bin-dir"].as_str()), (Some("tgz"), Some("{ bin }{ binary-ext }")));
}

#[test]
fn the_workflows_of_the_page_run_as_they_stand_there() {
    let workflows = workflows(&page());
    assert_eq!(workflows.len(), 6, "GitHub's three, Azure's, GitLab's, and a step that keeps caches");
    let program = Path::new(env!("CARGO_BIN_EXE_ftctl")).parent().expect("a folder");
    let path = format!("{}:{}", program.display(), env::var("PATH").expect("a path"));
    // The second follows what the first has submitted.
    let sandbox = Sandbox::in_memory();
    sandbox.write_rehearsal("train");
    for workflow in &workflows {
        for event in Parser::new_from_str(workflow) {
            event.unwrap_or_else(|error| panic!("{error}:\n{workflow}"));
        }
        for script in scripts(workflow) {
            let script = script.replace("cargo install", "true cargo install").replace("/tmp/azure-token", "azure-token");
            let mut bash = Command::new("bash");
            bash.args(["-e", "-o", "pipefail", "-c", &script]).current_dir(sandbox.path("")).env_clear();
            bash.env("HOME", sandbox.home()).env("PATH", &path).env("FTCTL_TRUST_PROJECT", "1").env("FTCTL_ADOPT", "1");
            bash.env("GITHUB_STEP_SUMMARY", sandbox.path("summary.md")).env("GITHUB_RUN_ID", "7");
            bash.env("BUILD_BUILDID", "8").env("CI_PIPELINE_ID", "9").env("FTCTL_REPOSITORY", "https://example.org/ftctl");
            bash.env("AZURE_TOKEN", "token").env("AZURE_FEDERATED_TOKEN_FILE", sandbox.path("azure-token"));
            let said = Sandbox::said(&mut bash);
            assert_eq!(said.code, Some(0), "{script}\n{}{}", said.stdout, said.stderr);
        }
        let _ = fs::remove_dir_all(sandbox.path("model"));
    }
    let summary = fs::read_to_string(sandbox.path("summary.md")).expect("a receipt");
    assert!(summary.contains("USD"), "{summary}");
}

#[test]
fn the_page_names_every_exit_code() {
    let page = page();
    let table: String = page.lines().filter(|line| line.starts_with('|')).collect();
    let named = |code: u8| table.contains(&format!("| {code} |"));
    for code in 0..=u8::MAX {
        assert_eq!(named(code), ftctl::exit::Exit::from_code(code).is_some(), "{code}");
    }
}
