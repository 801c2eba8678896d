//! Reads the configuration of `ft-trainer train`: a TOML or JSON file, with single values set on the command line.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use super::TrainConfig;
use super::validate;
use crate::error::Failure;
use crate::files;

/// Reads `path`, applies every `key.path=value` in order and checks the result.
pub fn read(path: &Path, overrides: &[String]) -> Result<TrainConfig, Failure> {
    let mut root = parse(path)?;
    for assignment in overrides {
        assign(&mut root, assignment)?;
    }
    let shown = path.display();
    let config = serde_path_to_error::deserialize(root).map_err(|error| Failure::input(format!("{shown}: {}", explain(&error))))?;
    validate::all_hold(validate::config(&config)).map_err(|error| Failure::input(format!("{shown}: {error}")))?;
    Ok(config)
}

fn parse(path: &Path) -> Result<Value, Failure> {
    let content = fs::read(path).map_err(|error| {
        let what = "give the path of a configuration, TOML or JSON; `data`, `output` and the [train] table are in each";
        Failure::input(format!("cannot read {}: {error}; {what}", path.display()))
    })?;
    let text = files::text(content).map_err(|reason| Failure::input(format!("{}: {reason}", path.display())))?;
    let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let value = if json {
        serde_json::from_str(&text).map_err(|error| error.to_string())
    } else {
        toml::from_str(&text).map_err(|error| error.to_string())
    };
    value.map_err(|error| Failure::input(format!("{}: {}", path.display(), error.trim_end())))
}

/// Sets one value. Text that is not TOML is taken as a string, so that `--set model.preset=gpt2` needs no quotes inside quotes.
fn assign(root: &mut Value, assignment: &str) -> Result<(), Failure> {
    let malformed = || Failure::input(format!("--set {assignment}: expected `key=value`, for example `--set train.steps=100`"));
    let (key, text) = assignment.split_once('=').ok_or_else(malformed)?;
    let value = toml::from_str::<Map<String, Value>>(&format!("value = {text}")).ok().and_then(|mut table| table.remove("value"));
    let mut place = root;
    for part in key.trim().split('.') {
        if part.is_empty() {
            return Err(malformed());
        }
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        let table = place
            .as_object_mut()
            .ok_or_else(|| Failure::input(format!("--set {assignment}: `{part}` is inside a value, not a table")))?;
        place = table.entry(part).or_insert(Value::Null);
    }
    *place = value.unwrap_or_else(|| Value::String(text.to_owned()));
    Ok(())
}

/// Where the error is and, for an unknown key, the key that was probably meant.
fn explain(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let path = error.path().to_string();
    let message = error.inner().to_string();
    let Some(unknown) = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()) else {
        return if path == "." { message } else { format!("`{path}`: {message}") };
    };
    let table = path.strip_suffix(unknown).unwrap_or_default();
    let known = message.split_once("expected").map_or("", |(_, known)| known);
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    let meant = nearest(unknown, &known)
        .map_or_else(|| format!("known keys are {}", known.join(", ")), |name| format!("did you mean `{table}{name}`?"));
    format!("unknown key `{table}{unknown}`; {meant}")
}

/// The candidate that `name` is probably a misspelling of.
pub fn nearest<'a>(name: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let distance = |candidate: &&str| strsim::damerau_levenshtein(name, candidate);
    candidates.iter().copied().min_by_key(distance).filter(|best| distance(best) <= name.len().max(best.len()) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Preset;

    fn read_text(name: &str, text: &str, overrides: &[&str]) -> Result<TrainConfig, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        read(&path, &overrides).map_err(|failure| {
            assert_eq!(failure.code(), 2);
            failure.to_string().replace(&format!("{}: ", path.display()), "")
        })
    }

    #[test]
    fn toml_and_json_say_the_same() {
        let toml = read_text("c.toml", "data = \"d\"\noutput = \"o\"\n[train]\nsteps = 5\nlearning_rate = 1e-3\n", &[]);
        let json = read_text("c.json", r#"{"data": "d", "output": "o", "train": {"steps": 5, "learning_rate": 0.001}}"#, &[]);
        assert_eq!(toml.unwrap(), json.unwrap());
    }

    #[test]
    fn single_values_override_the_file() {
        let sets =
            ["train.steps=7", "model.preset=gpt2-medium", "train.betas=[0.8, 0.9]", "output=/a/b", "sample.prompt=\"fn main\""];
        let config = read_text("c.toml", "data = \"d\"\n[train]\nsteps = 5\n", &sets).unwrap();
        assert_eq!((config.train.steps, config.model.preset), (Some(7), Some(Preset::Gpt2Medium)));
        assert_eq!(format!("{:?}", config.train.betas), "[0.8, 0.9]");
        assert_eq!((config.output.to_str(), config.sample.unwrap().prompt.as_str()), (Some("/a/b"), "fn main"));
    }

    #[test]
    fn mistakes_are_named() {
        let base = "data = \"d\"\noutput = \"o\"\n";
        let cases = [
            ("train.blok_size=5", "unknown key `train.blok_size`; did you mean `train.block_size`?"),
            ("trian.steps=5", "unknown key `trian`; did you mean `train`?"),
            ("train.steps=many", "`train.steps`: invalid type: string \"many\", expected u64"),
            ("train.steps.x=1", "`train.steps`: invalid type: map, expected u64"),
            ("train.steps=0", "train.steps: steps must be at least 1, but is 0"),
            ("output.x=1", "--set output.x=1: `x` is inside a value, not a table"),
            ("steps", "--set steps: expected `key=value`, for example `--set train.steps=100`"),
        ];
        for (assignment, expected) in cases {
            assert_eq!(read_text("c.toml", base, &[assignment]).unwrap_err(), expected);
        }
        assert_eq!(read_text("c.toml", "output = \"o\"", &[]).unwrap_err(), "missing field `data`");
        assert!(read_text("c.toml", "data = \"d\noutput = 1", &[]).unwrap_err().contains("line 1, column"));
    }
}
