//! Values of the configuration that no run can have, found before anything is read or allocated.

use crate::config::{Schedule, TrainConfig, TrainSettings};

/// A value that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{key} = {value}`: {reason}")]
pub struct InvalidValue {
    /// As in the file, `train.block_size`.
    pub key: String,
    pub value: String,
    pub reason: String,
}

/// Checks a whole configuration.
pub fn config(config: &TrainConfig) -> Result<(), InvalidValue> {
    train(&config.train)?;
    let Some(sample) = &config.sample else { return Ok(()) };
    check(
        "sample.temperature",
        &sample.temperature,
        sample.temperature >= 0.0 && sample.temperature.is_finite(),
        "must not be negative",
    )?;
    check("sample.top_p", &sample.top_p, sample.top_p > 0.0 && sample.top_p <= 1.0, "must be above 0 and at most 1")?;
    check("sample.tokens", &sample.tokens, sample.tokens > 0, AT_LEAST_ONE)
}

/// Checks the `[train]` table.
pub fn train(settings: &TrainSettings) -> Result<(), InvalidValue> {
    counts(settings)?;
    rates(settings)?;
    let Some(steps) = settings.steps else { return Ok(()) };
    check("train.steps", &steps, steps > 0, AT_LEAST_ONE)?;
    check("train.steps", &steps, settings.epochs.is_none(), "cannot be given together with `train.epochs`; leave one out")?;
    fits(settings, steps)
}

/// Checks that warm-up and decay fit into a run of `steps` steps: known only with the data when the length is given in epochs.
pub fn fits(settings: &TrainSettings, steps: u64) -> Result<(), InvalidValue> {
    let reason = |what: &str| format!("{what} longer than the run of {steps} steps");
    let warmup = settings.warmup_steps;
    check("train.warmup_steps", &warmup, warmup <= steps, &reason("is"))?;
    let decay = settings.decay_steps.unwrap_or(0);
    let fits = settings.schedule != Schedule::Wsd || warmup.saturating_add(decay) <= steps;
    check("train.decay_steps", &decay, fits, &reason("with the warm-up is"))
}

fn counts(settings: &TrainSettings) -> Result<(), InvalidValue> {
    check("train.block_size", &settings.block_size, settings.block_size > 0, AT_LEAST_ONE)?;
    check("train.micro_batch", &settings.micro_batch, settings.micro_batch > 0, AT_LEAST_ONE)?;
    check("train.gradient_accumulation", &settings.gradient_accumulation, settings.gradient_accumulation > 0, AT_LEAST_ONE)?;
    check("train.keep_checkpoints", &settings.keep_checkpoints, settings.keep_checkpoints > 0, AT_LEAST_ONE)?;
    check("train.log_every", &settings.log_every, settings.log_every > 0, AT_LEAST_ONE)?;
    check("train.threads", &0, settings.threads != Some(0), AT_LEAST_ONE)?;
    check("train.eval_sequences", &0, settings.eval_sequences != Some(0), AT_LEAST_ONE)?;
    let patience = settings.early_stopping_patience;
    check("train.early_stopping_patience", &0, patience != Some(0), AT_LEAST_ONE)?;
    let evaluated = patience.is_none() || settings.eval_every > 0;
    check("train.early_stopping_patience", &patience.unwrap_or(0), evaluated, "counts evaluations; set `train.eval_every`")?;
    let epochs = settings.epochs.unwrap_or(1.0);
    check("train.epochs", &epochs, epochs > 0.0 && epochs.is_finite(), "must be above 0")
}

fn rates(settings: &TrainSettings) -> Result<(), InvalidValue> {
    let not_negative =
        |key, value: f64| check(key, &value, value >= 0.0 && value.is_finite(), "must be a number that is not negative");
    not_negative("train.learning_rate", settings.learning_rate)?;
    not_negative("train.min_learning_rate", settings.min_learning_rate)?;
    not_negative("train.power", settings.power)?;
    not_negative("train.warmup_learning_rate", settings.warmup_learning_rate)?;
    not_negative("train.weight_decay", settings.weight_decay)?;
    not_negative("train.clip_norm", settings.clip_norm)?;
    not_negative("train.skip_spikes", settings.skip_spikes)?;
    let (low, high) = (settings.min_learning_rate, settings.learning_rate);
    check("train.min_learning_rate", &low, low <= high, &format!("must not be above `train.learning_rate = {high}`"))?;
    let start = settings.warmup_learning_rate;
    check("train.warmup_learning_rate", &start, start <= high, &format!("must not be above `train.learning_rate = {high}`"))?;
    check("train.momentum", &settings.momentum, (0.0..1.0).contains(&settings.momentum), "must be at least 0 and below 1")?;
    check("train.epsilon", &settings.epsilon, settings.epsilon > 0.0 && settings.epsilon.is_finite(), "must be above 0")?;
    let betas = settings.betas.iter().all(|beta| (0.0..1.0).contains(beta));
    check("train.betas", &format!("{:?}", settings.betas), betas, "must be at least 0 and below 1")
}

const AT_LEAST_ONE: &str = "must be at least 1";

fn check(key: &str, value: &dyn std::fmt::Display, holds: bool, reason: &str) -> Result<(), InvalidValue> {
    let invalid = || InvalidValue { key: key.to_owned(), value: value.to_string(), reason: reason.to_owned() };
    holds.then_some(()).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(change: impl FnOnce(&mut TrainSettings)) -> String {
        let mut settings = TrainSettings::default();
        change(&mut settings);
        train(&settings).map_or_else(|error| error.to_string(), |()| "accepted".to_owned())
    }

    #[test]
    fn the_defaults_are_possible() {
        assert_eq!(message(|_| ()), "accepted");
    }

    #[test]
    fn impossible_values_name_their_key() {
        assert_eq!(message(|train| train.block_size = 0), "`train.block_size = 0`: must be at least 1");
        assert_eq!(
            message(|train| train.learning_rate = f64::NAN),
            "`train.learning_rate = NaN`: must be a number that is not negative"
        );
        assert_eq!(message(|train| train.betas = [0.9, 1.0]), "`train.betas = [0.9, 1.0]`: must be at least 0 and below 1");
        assert_eq!(message(|train| train.threads = Some(0)), "`train.threads = 0`: must be at least 1");
        let both = message(|train| (train.steps, train.epochs) = (Some(5), Some(1.0)));
        assert_eq!(both, "`train.steps = 5`: cannot be given together with `train.epochs`; leave one out");
        let warmup = message(|train| (train.steps, train.warmup_steps) = (Some(5), 6));
        assert_eq!(warmup, "`train.warmup_steps = 6`: is longer than the run of 5 steps");
    }
}
