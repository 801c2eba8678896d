//! `ftctl generate`: a trained model continues text on this machine.

use clap::Args;

use super::{App, completion, model, trainer};
use crate::{exit::Failure, job::report::Format};

/// Let a model continue text, on this machine
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ftctl generate quickstart --prompt 'fn main'\n  ftctl generate model --prompt 'Once' --tokens 50 --temperature 0"
)]
pub struct Arguments {
    /// A job, one of its checkpoints (NAME@STEP), or any Hugging Face directory of a GPT-2 with its tokenizer
    #[arg(add = completion::models())]
    model: String,
    /// Text to continue; may be repeated, which makes a batch
    #[arg(long, required = true)]
    prompt: Vec<String>,
    /// Most tokens to add
    #[arg(long, default_value_t = 100)]
    tokens: usize,
    /// 0 is greedy
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Keep the k likeliest tokens; 0 keeps all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches this
    #[arg(long, default_value_t = 0.95)]
    top_p: f64,
    /// The same seed gives the same text
    #[arg(long, default_value_t = 42)]
    seed: u64,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        if app.dry_run {
            return app.output.show(&model::intent(&self.model, "continue the prompt with"));
        }
        let model = model::directory(app, &self.model)?;
        let mut arguments = vec!["generate".into(), "--model".into(), model];
        for prompt in &self.prompt {
            arguments.push(format!("--prompt={prompt}").into());
        }
        let numbers = [
            ("--tokens", self.tokens.to_string()),
            ("--temperature", self.temperature.to_string()),
            ("--top-k", self.top_k.to_string()),
            ("--top-p", self.top_p.to_string()),
            ("--seed", self.seed.to_string()),
        ];
        arguments.extend(numbers.map(|(name, value)| format!("{name}={value}").into()));
        if app.output.format() == Format::Json || app.output.format() == Format::Jsonl {
            arguments.push("--json".into());
        }
        trainer::answer(app, &arguments)
    }
}
