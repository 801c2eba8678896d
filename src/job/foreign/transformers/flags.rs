//! The flags of run_clm.py and its neighbours.

use super::{
    DATASET, DATASET_CONFIG, EVAL_STRATEGY, EVALUATES, LEAST_RATE, LINE_ENDS, LOG_STRATEGY, NEEDS_LEAST, RESTARTS, SAVE_STRATEGY,
    TRAINS, WARMUP, WITHOUT_WARMUP, block_size, checkpointing, clip_norm, config, data_seed, dtype, eval_steps, half,
    logging_steps, max_steps, model, model_type, onnx_runtime, overrides, percentage, resume, runs, scheduler_settings, shards,
    tokenizer, warmup_ratio,
};
use crate::job::foreign::{
    ACCUMULATION, ALL_CORES, CHECKPOINT_EVERY, Flag, MICRO_BATCH,
    Meaning::*,
    NAMED_BY_JOB, ONE_DEVICE, OTHER_OPTIMIZER, OWN_LOADER, OWN_LOG, OWN_PROCESSES, PRECISION, REVISION,
    Setting::{Number as N, Word as W, Yes},
    TRACKERS, keep,
};

const OWN_STORE: &str = "a dataset is prepared again only when its text changes";
const TOKEN_WEIGHTED: &str = "evaluation reads as many sequences at once as training; the perplexity here does not depend on it";
const OWN_ENGINE: &str = "the trainer has its own engine";
const OWN_METRICS: &str = "an evaluation is the loss and the perplexity of all tokens";
const NO_UPLOAD: &str = "nothing is sent to a hub";
const TOKEN: &str = "the token for the hub is in HF_TOKEN, or where `hf auth login` keeps it";
const NO_CODE: &str = "nothing of a repository is executed";
const NO_PADDING: &str = "every block is full, and has one column: the tokens";
const BY_ITSELF: &str = "a run that is resumed goes on with data, schedule and optimizer as they were";

/// Those of all programs. Sizes of a published GPT-2 are known by name, everything else is a directory.
pub(super) const COMMON: &[Flag] = &[
    Flag { names: &["model_name_or_path"], meaning: Special(model) },
    Flag { names: &["config_name"], meaning: Special(config) },
    Flag { names: &["model_type"], meaning: Special(model_type) },
    Flag { names: &["tokenizer_name"], meaning: Special(tokenizer) },
    Flag { names: &["train_file", "train_data_file"], meaning: Path("data.train") },
    Flag { names: &["validation_file", "eval_data_file"], meaning: Path("data.validation") },
    Flag { names: &["validation_split_percentage"], meaning: Special(percentage) },
    Flag { names: &["dataset_name"], meaning: Text(DATASET) },
    Flag { names: &["dataset_config_name"], meaning: Text(DATASET_CONFIG) },
    Flag { names: &["output_dir"], meaning: Nothing(NAMED_BY_JOB) },
    Flag { names: &["overwrite_cache"], meaning: Switch(OWN_STORE) },
    Flag { names: &["per_device_train_batch_size", "per_gpu_train_batch_size"], meaning: Whole(MICRO_BATCH) },
    Flag {
        names: &["per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_accumulation_steps"],
        meaning: Nothing(TOKEN_WEIGHTED),
    },
    Flag { names: &["gradient_accumulation_steps"], meaning: Whole(ACCUMULATION) },
    Flag { names: &["block_size"], meaning: Special(block_size) },
    Flag { names: &["learning_rate"], meaning: Number("train.learning_rate") },
    Flag { names: &["weight_decay"], meaning: Number("train.weight_decay") },
    Flag { names: &["num_train_epochs"], meaning: Number("train.epochs") },
    Flag { names: &["max_steps", "max_train_steps"], meaning: Special(max_steps) },
    Flag { names: &["warmup_steps", "num_warmup_steps"], meaning: Length(WARMUP) },
    Flag {
        names: &["lr_scheduler_type"],
        meaning: Choice(&[
            ("linear", &[("train.schedule", W("linear"))]),
            ("cosine", &[("train.schedule", W("cosine"))]),
            // With one cycle, which is its default, no restart comes before the end.
            ("cosine_with_restarts", &[("train.schedule", W("cosine")), (RESTARTS, Yes)]),
            ("cosine_with_min_lr", &[("train.schedule", W("cosine")), (NEEDS_LEAST, Yes)]),
            ("polynomial", &[("train.schedule", W("polynomial")), (LEAST_RATE, N(1e-7))]),
            ("constant", &[("train.schedule", W("constant")), (WITHOUT_WARMUP, Yes)]),
            ("constant_with_warmup", &[("train.schedule", W("constant"))]),
            ("warmup_stable_decay", &[("train.schedule", W("wsd"))]),
        ]),
    },
    Flag { names: &["seed"], meaning: Whole("train.seed") },
    Flag { names: &["resume_from_checkpoint"], meaning: Special(resume) },
    Flag { names: &["streaming"], meaning: Switch("a dataset is always read from disk as it is needed") },
    Flag { names: &["preprocessing_num_workers"], meaning: Nothing(ALL_CORES) },
    Flag { names: &["report_to"], meaning: Nothing(TRACKERS) },
    Flag { names: &["keep_linebreaks"], meaning: Always(LINE_ENDS) },
    Flag { names: &["push_to_hub"], meaning: NoSwitch(NO_UPLOAD) },
    Flag { names: &["hub_token", "hub_model_id"], meaning: Nothing(NO_UPLOAD) },
    Flag { names: &["trust_remote_code"], meaning: Switch(NO_CODE) },
    Flag { names: &["low_cpu_mem_usage"], meaning: Switch(OWN_ENGINE) },
    Flag { names: &["use_fast_tokenizer"], meaning: Switch(OWN_ENGINE) },
];

/// Flags that `run_clm.py` adds to the common ones, with `TrainingArguments` of transformers 5.
pub(super) const FLAGS: &[Flag] = &[
    Flag { names: &["do_train"], meaning: SpecialSwitch(|job, _| runs(job, TRAINS)) },
    Flag { names: &["do_eval"], meaning: SpecialSwitch(|job, _| runs(job, EVALUATES)) },
    Flag { names: &["do_predict"], meaning: Switch("the program does nothing of the kind itself") },
    Flag { names: &["cache_dir", "run_name"], meaning: Nothing(NAMED_BY_JOB) },
    Flag { names: &["adam_beta1"], meaning: Beta(0) },
    Flag { names: &["adam_beta2"], meaning: Beta(1) },
    Flag { names: &["adam_epsilon"], meaning: Number("train.epsilon") },
    Flag { names: &["max_grad_norm"], meaning: Special(clip_norm) },
    Flag { names: &["lr_scheduler_kwargs"], meaning: Special(scheduler_settings) },
    Flag {
        names: &["optim"],
        meaning: Choice(&[
            ("adamw_torch", &[]),
            ("adamw_torch_fused", &[]),
            ("adamw_torch_xla", &[]),
            ("adamw_torch_npu_fused", &[]),
            ("adamw_hf", &[]),
            ("adafactor", &[("train.optimizer", W("adafactor"))]),
        ]),
    },
    Flag { names: &["optim_args", "optim_target_modules"], meaning: Refused(OTHER_OPTIMIZER) },
    Flag { names: &["label_smoothing_factor"], meaning: Must(0.0, "the loss is that of the text itself here; give 0") },
    Flag { names: &["neftune_noise_alpha"], meaning: Refused("embeddings get no noise here") },
    Flag { names: &["data_seed"], meaning: Special(data_seed) },
    Flag { names: &["logging_steps"], meaning: Special(logging_steps) },
    Flag { names: &["save_steps"], meaning: Length(CHECKPOINT_EVERY) },
    Flag { names: &["eval_steps"], meaning: Special(eval_steps) },
    Flag { names: &["save_total_limit"], meaning: Special(keep) },
    Flag {
        names: &["eval_strategy", "evaluation_strategy"],
        meaning: Choice(&[
            ("steps", &[(EVAL_STRATEGY, W("steps"))]),
            ("epoch", &[(EVAL_STRATEGY, W("epoch"))]),
            ("no", &[(EVAL_STRATEGY, W("no"))]),
        ]),
    },
    Flag {
        names: &["save_strategy"],
        meaning: Choice(&[
            ("steps", &[(SAVE_STRATEGY, W("steps"))]),
            ("epoch", &[(SAVE_STRATEGY, W("epoch"))]),
            ("no", &[(SAVE_STRATEGY, W("no"))]),
            ("best", &[(SAVE_STRATEGY, W("best"))]),
        ]),
    },
    Flag {
        names: &["logging_strategy"],
        meaning: Choice(&[
            ("steps", &[(LOG_STRATEGY, W("steps"))]),
            ("epoch", &[(LOG_STRATEGY, W("epoch"))]),
            ("no", &[(LOG_STRATEGY, W("no"))]),
        ]),
    },
    Flag { names: &["logging_first_step"], meaning: Switch("the first step is always logged") },
    Flag { names: &["eval_delay"], meaning: Must(0.0, "evaluations begin with the run here; give 0") },
    Flag { names: &["eval_on_start"], meaning: Switch("a run evaluates before its first step anyway") },
    Flag { names: &["max_eval_samples"], meaning: Whole("train.eval_sequences") },
    Flag { names: &["max_train_samples"], meaning: Refused("give data.limit_bytes in the job file instead") },
    Flag { names: &["bf16"], meaning: SpecialSwitch(|job, _| half(job, "bf16")) },
    Flag { names: &["fp16"], meaning: SpecialSwitch(|job, _| half(job, "fp16")) },
    Flag { names: &["fp16_full_eval", "bf16_full_eval"], meaning: NoSwitch(PRECISION) },
    Flag { names: &["torch_dtype", "dtype"], meaning: Special(dtype) },
    Flag { names: &["tf32"], meaning: SwitchTo(&[("train.tf32", Yes)]) },
    Flag { names: &["full_determinism"], meaning: SwitchTo(&[("train.deterministic", Yes)]) },
    Flag { names: &["use_cpu"], meaning: SwitchTo(&[("train.device", W("cpu"))]) },
    Flag { names: &["gradient_checkpointing"], meaning: SwitchTo(&[("train.recompute", W("full"))]) },
    Flag { names: &["gradient_checkpointing_kwargs"], meaning: Nothing("what is computed again has the same bits either way") },
    Flag {
        names: &["auto_find_batch_size"],
        meaning: Switch(
            "a run that runs out of memory goes on with fewer sequences at once by itself, and its steps stay what they are",
        ),
    },
    Flag { names: &["deepspeed"], meaning: Special(|_, _| Ok(())) },
    Flag { names: &["load_best_model_at_end"], meaning: SwitchTo(&[("train.keep_best", Yes)]) },
    Flag {
        names: &["metric_for_best_model"],
        meaning: Only(&["loss", "eval_loss"], "the best weights are those of the lowest loss"),
    },
    Flag { names: &["greater_is_better"], meaning: NoSwitch("the best weights are those of the lowest loss") },
    Flag { names: &["config_overrides"], meaning: Special(overrides) },
    Flag { names: &["ignore_data_skip"], meaning: NoSwitch(BY_ITSELF) },
    Flag { names: &["restore_callback_states_from_checkpoint"], meaning: Switch(BY_ITSELF) },
    Flag {
        names: &["save_only_model"],
        meaning: Switch("checkpoints hold the optimizer, too: a run whose machine is taken away goes on from them"),
    },
    Flag { names: &["enable_jit_checkpoint"], meaning: Switch("a run leaves a checkpoint when its machine is taken away") },
    Flag {
        names: &["train_sampling_strategy"],
        meaning: Only(&["random"], "blocks come in a random order here, and all have one length; give random"),
    },
    Flag { names: &["push_to_hub_model_id", "push_to_hub_organization", "push_to_hub_token"], meaning: Nothing(NO_UPLOAD) },
    Flag { names: &["hub_strategy", "hub_revision"], meaning: Nothing(NO_UPLOAD) },
    Flag { names: &["model_revision"], meaning: Text(REVISION) },
    Flag { names: &["token", "use_auth_token"], meaning: Nothing(TOKEN) },
    Flag { names: &["hub_private_repo", "hub_always_push"], meaning: Switch(NO_UPLOAD) },
    Flag { names: &["project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"], meaning: Nothing(TRACKERS) },
    Flag { names: &["log_level", "log_level_replica", "debug"], meaning: Nothing(OWN_LOG) },
    Flag { names: &["disable_tqdm", "logging_nan_inf_filter"], meaning: Switch(OWN_LOG) },
    Flag { names: &["include_num_input_tokens_seen"], meaning: Nothing("tokens are always counted") },
    Flag { names: &["skip_memory_metrics"], meaning: Switch("the largest use of memory is always logged") },
    Flag { names: &["label_names", "include_for_metrics"], meaning: Nothing(OWN_METRICS) },
    Flag {
        names: &["prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object", "batch_eval_metrics"],
        meaning: Switch(OWN_METRICS),
    },
    Flag { names: &["remove_unused_columns"], meaning: Switch(NO_PADDING) },
    Flag { names: &["length_column_name"], meaning: Nothing(NO_PADDING) },
    Flag {
        names: &["dataloader_num_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context"],
        meaning: Nothing(OWN_LOADER),
    },
    Flag { names: &["dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_in_order"], meaning: Switch(OWN_LOADER) },
    Flag { names: &["dataloader_drop_last"], meaning: Switch("all steps have one size") },
    Flag {
        names: &["torch_compile_backend", "torch_compile_mode", "liger_kernel_config", "torch_empty_cache_steps"],
        meaning: Nothing(OWN_ENGINE),
    },
    Flag { names: &["torch_compile", "use_liger_kernel", "use_cache"], meaning: Switch(OWN_ENGINE) },
    Flag {
        names: &["local_rank", "ddp_timeout", "ddp_backend", "ddp_bucket_cap_mb", "fsdp_config", "accelerator_config"],
        meaning: Nothing(OWN_PROCESSES),
    },
    Flag { names: &["fsdp"], meaning: Special(shards) },
    Flag {
        names: &[
            "average_tokens_across_devices",
            "log_on_each_node",
            "save_on_each_node",
            "ddp_find_unused_parameters",
            "ddp_broadcast_buffers",
            "ddp_static_graph",
        ],
        meaning: Switch(OWN_PROCESSES),
    },
    Flag { names: &["parallelism_config"], meaning: Refused(ONE_DEVICE) },
];

/// More flags, which earlier versions of transformers and its neighbours know.
pub(super) const OLD_FLAGS: &[Flag] = &[
    Flag { names: &["logging_dir"], meaning: Nothing(NAMED_BY_JOB) },
    Flag { names: &["overwrite_output_dir", "should_continue"], meaning: Switch(NAMED_BY_JOB) },
    Flag { names: &["evaluate_during_training"], meaning: SwitchTo(&[(EVAL_STRATEGY, W("steps"))]) },
    Flag { names: &["warmup_ratio"], meaning: Special(warmup_ratio) },
    Flag { names: &["adafactor"], meaning: NoSwitch("write --optim adafactor") },
    Flag { names: &["fp16_opt_level"], meaning: Choice(&[("O1", &[])]) },
    Flag {
        names: &["fp16_backend", "half_precision_backend"],
        meaning: Choice(&[("auto", &[]), ("amp", &[]), ("cuda_amp", &[]), ("apex", &[])]),
    },
    Flag { names: &["no_cuda"], meaning: SwitchTo(&[("train.device", W("cpu"))]) },
    Flag { names: &["use_mps_device"], meaning: NoSwitch("Apple's GPUs are not known here") },
    Flag { names: &["use_ipex", "jit_mode_eval", "do_eval_in_torch", "use_legacy_prediction_loop"], meaning: Switch(OWN_ENGINE) },
    Flag { names: &["torchdynamo", "past_index", "mp_parameters", "tpu_num_cores"], meaning: Nothing(OWN_ENGINE) },
    Flag { names: &["ort_trainer", "use_ort"], meaning: SpecialSwitch(onnx_runtime) },
    Flag { names: &["group_by_length"], meaning: NoSwitch("all blocks have one length here, and come in a random order") },
    Flag { names: &["include_inputs_for_metrics"], meaning: Switch(OWN_METRICS) },
    Flag { names: &["include_tokens_per_second"], meaning: Switch("tokens are always counted") },
    Flag { names: &["tpu_metrics_debug"], meaning: Switch(OWN_LOG) },
    Flag { names: &["ray_scope"], meaning: Nothing("there is one run, and no search") },
    Flag { names: &["save_safetensors"], meaning: Always("weights are written as safetensors") },
    Flag { names: &["dispatch_batches", "split_batches"], meaning: Switch(OWN_PROCESSES) },
    Flag { names: &["sharded_ddp"], meaning: Special(shards) },
    Flag { names: &["fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap", "xpu_backend"], meaning: Nothing(OWN_PROCESSES) },
    Flag { names: &["line_by_line"], meaning: NoSwitch("lines are not cut to blocks of their own here; text is one stream") },
    Flag {
        names: &["mlm"],
        meaning: NoSwitch("it trains a model that fills gaps in a text, and here the next token is predicted"),
    },
    Flag { names: &["mlm_probability"], meaning: Nothing("only masked models have one") },
];

/// Flags that `run_clm_no_trainer.py` adds to the common ones.
pub(super) const NO_TRAINER_FLAGS: &[Flag] = &[
    Flag { names: &["checkpointing_steps"], meaning: Special(checkpointing) },
    Flag { names: &["no_keep_linebreaks"], meaning: NoSwitch(LINE_ENDS) },
    Flag { names: &["with_tracking", "use_slow_tokenizer"], meaning: Switch(OWN_ENGINE) },
];
