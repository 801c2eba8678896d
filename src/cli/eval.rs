//! `ftctl eval`: the perplexity of a trained model, measured on this machine.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{App, completion, model, trainer};
use crate::exit::Failure;

/// Measure a model's loss and perplexity on a prepared dataset, on this machine; prints JSON
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ftctl eval quickstart@300 --data prepared")]
pub struct Arguments {
    /// A job, one of its checkpoints (NAME@STEP), or any Hugging Face directory of a GPT-2
    #[arg(add = completion::models())]
    model: String,
    /// A directory that `ftctl prepare` wrote
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Which part of it
    #[arg(long, value_enum, default_value = "validation")]
    split: Split,
    /// Tokens per block [default: the model's context]
    #[arg(long, value_name = "TOKENS")]
    block_size: Option<usize>,
    /// Read only this many blocks
    #[arg(long, value_name = "N")]
    sequences: Option<usize>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Split {
    Train,
    Validation,
}

impl Arguments {
    pub fn run(self, app: &mut App<'_>) -> Result<(), Failure> {
        if app.dry_run {
            return app.output.show(&model::intent(&self.model, "measure"));
        }
        let model = model::directory(app, &self.model)?;
        let data = trainer::directory(app, &self.data, "`ftctl prepare --out DIR` makes one from text")?;
        let split = match self.split {
            Split::Train => "train",
            Split::Validation => "validation",
        };
        let mut arguments = vec!["eval".into(), "--model".into(), model, "--data".into(), data];
        arguments.push(format!("--split={split}").into());
        let numbers = [("--block-size", self.block_size), ("--sequences", self.sequences)];
        arguments.extend(numbers.iter().filter_map(|(name, value)| Some(format!("{name}={}", (*value)?).into())));
        trainer::answer(app, &arguments)
    }
}
