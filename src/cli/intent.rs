//! The output of `--dry-run`.

use serde_json::{Value, json};

use crate::output::Show;

/// The acts of a verb, one a line; nothing was changed.
pub struct Intent(pub Vec<String>);

impl Show for Intent {
    fn schema(&self) -> &'static str {
        "ftctl.intent/1"
    }

    fn json(&self) -> Value {
        json!({ "would": self.0 })
    }

    fn text(&self) -> String {
        if self.0.is_empty() {
            return "there is nothing to do".to_owned();
        }
        self.0.iter().map(|act| format!("would {act}")).collect::<Vec<_>>().join("\n")
    }

    fn names(&self) -> Vec<String> {
        self.0.clone()
    }
}
