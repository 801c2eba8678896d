//! The flags of `fairseq-train`.

use super::{
    INITIAL_SCALE, INPUT, LEAST_SCALE, MAX_TOKENS, MULTIPLE, NETWORK, ONE_PERIOD, OUTPUT, PERIOD, SAVE_EPOCHS, SHARED, TOTAL,
    TRAIN_SUBSET, UNSAVED, UNSHRUNK, UNVALIDATED, VALID_SUBSET, VALIDATE_EPOCHS, arch, betas, keep_best, max_epoch, max_update,
    patience, rate, save_updates, update_freq, validate_updates,
};
use crate::job::foreign::{
    BLOCK_SIZE, CONTEXT, Flag, LOG_EVERY, MICRO_BATCH,
    Meaning::*,
    NAMED_BY_JOB, ONE_DEVICE, OTHER_OPTIMIZER, OTHER_SCHEDULE, OWN_KERNELS, OWN_LOADER, OWN_LOG, OWN_PROCESSES, PRECISION,
    Setting::{Whole as I, Word as W, Yes},
    TRACKERS, ZERO, keep,
};

const ACTIVATION_DROPOUT: &str = "nothing is dropped inside the network of a block here; give 0";
const NO_GAUDI: &str = "Gaudi accelerators are not known here";
const NO_TPU: &str = "TPUs are not known here";
const FULL_BLOCKS: &str = "every block is full";
const TOKEN_WEIGHTED: &str = "evaluation reads as many sequences at once as training; the loss here does not depend on it";
const OWN_RUN: &str = "a job begins a run of its own, and goes on from its own checkpoints by itself";
const NO_PICKLES: &str =
    "fairseq's checkpoints are not read here; convert the model to transformers' XGLM, and name it in initial_weights";
const ONE_ADAM: &str = "the moments are in float32 here";
const ORDER: &str = "blocks come in a random order of their own";
const SOFTMAX: &str = "there is one softmax over all tokens here";
const ONLY_THE_NEXT: &str = "each token predicts the next here, and nothing else";
const NO_AVERAGE: &str = "no moving average of the weights is kept here";
const WITH_IT: &str = "it changes nothing without another flag, which is refused";
const SINES: &str = "positions are sinusoidal in fairseq's variant here";
const BLOCK_OF: &str = "a block is that of transformer_lm_gpt here";
const DEFAULT_SHARD: &str = "a dataset is whole here";

pub(super) const FLAGS: &[Flag] = &[
    Flag { names: &["task"], meaning: Choice(&[("language_modeling", &[])]) },
    Flag { names: &["arch", "a"], meaning: Special(arch) },
    Flag { names: &["criterion"], meaning: Choice(&[("cross_entropy", &[])]) },
    Flag { names: &["bpe", "tokenizer", "scoring"], meaning: Nothing("the text is already tokenised") },
    Flag { names: &["batch_size", "max_sentences"], meaning: Whole(MICRO_BATCH) },
    Flag { names: &["max_tokens"], meaning: Whole(MAX_TOKENS) },
    Flag { names: &["required_batch_size_multiple"], meaning: Whole(MULTIPLE) },
    Flag { names: &["update_freq"], meaning: Special(update_freq) },
    Flag { names: &["tokens_per_sample"], meaning: Whole(BLOCK_SIZE) },
    Flag { names: &["sample_break_mode"], meaning: Only(&["none"], "text is one stream here, cut into blocks; give none") },
    Flag { names: &["max_update"], meaning: Special(max_update) },
    Flag { names: &["max_epoch"], meaning: Special(max_epoch) },
    Flag { names: &["stop_time_hours"], meaning: Must(0.0, "limits.ttl bounds a job's time, and a run ends by its updates") },
    Flag { names: &["optimizer"], meaning: Choice(&[("adam", &[])]) },
    Flag { names: &["adam_betas"], meaning: Special(betas) },
    Flag { names: &["adam_eps"], meaning: Number("train.epsilon") },
    Flag { names: &["use_old_adam"], meaning: Switch("both of fairseq's Adams compute the same") },
    Flag { names: &["fp16_adam_stats"], meaning: NoSwitch(ONE_ADAM) },
    Flag { names: &["weight_decay"], meaning: Number("train.weight_decay") },
    Flag { names: &["clip_norm"], meaning: Number("train.clip_norm") },
    Flag { names: &["sentence_avg"], meaning: NoSwitch("every token counts alike here") },
    Flag { names: &["lr"], meaning: Special(rate) },
    Flag { names: &["momentum"], meaning: Refused(OTHER_OPTIMIZER) },
    Flag { names: &["seed"], meaning: Whole("train.seed") },
    Flag { names: &["save_interval"], meaning: Number(SAVE_EPOCHS) },
    Flag { names: &["save_interval_updates"], meaning: Special(save_updates) },
    Flag { names: &["keep_interval_updates", "keep_last_epochs"], meaning: Special(keep) },
    Flag { names: &["keep_interval_updates_pattern"], meaning: Must(-1.0, "the newest checkpoints are kept here; give -1") },
    Flag { names: &["keep_best_checkpoints"], meaning: Special(keep_best) },
    Flag { names: &["best_checkpoint_metric"], meaning: Choice(&[("loss", &[]), ("ppl", &[])]) },
    Flag { names: &["maximize_best_checkpoint_metric"], meaning: NoSwitch("the best weights are those of the lowest loss") },
    Flag { names: &["patience"], meaning: Special(patience) },
    Flag { names: &["validate_interval"], meaning: Number(VALIDATE_EPOCHS) },
    Flag { names: &["validate_interval_updates"], meaning: Special(validate_updates) },
    Flag { names: &["validate_after_updates"], meaning: Must(0.0, "evaluations begin with the run here; give 0") },
    Flag { names: &["disable_validation"], meaning: SwitchTo(&[(UNVALIDATED, Yes)]) },
    Flag { names: &["max_valid_steps", "nval"], meaning: Refused("give train.eval_sequences in the job file instead") },
    Flag { names: &["train_subset"], meaning: Text(TRAIN_SUBSET) },
    Flag { names: &["valid_subset"], meaning: Text(VALID_SUBSET) },
    Flag { names: &["log_interval"], meaning: Whole(LOG_EVERY) },
    Flag { names: &["cpu"], meaning: SwitchTo(&[("train.device", W("cpu"))]) },
    Flag { names: &["profile"], meaning: SwitchTo(&[("train.profile", Yes)]) },
    Flag { names: &["checkpoint_activations"], meaning: SwitchTo(&[("train.recompute", W("full"))]) },
    Flag { names: &["offload_activations"], meaning: SwitchTo(&[("train.recompute", W("host"))]) },
    Flag { names: &["hpu"], meaning: NoSwitch(NO_GAUDI) },
    Flag { names: &["tpu"], meaning: NoSwitch(NO_TPU) },
    Flag { names: &["fp16", "bf16", "memory_efficient_fp16", "memory_efficient_bf16"], meaning: NoSwitch(PRECISION) },
    // Its products alone are narrow, as here; torch's scaler moves the scale.
    Flag {
        names: &["amp"],
        meaning: SwitchTo(&[
            ("train.precision", W("fp16")),
            ("train.loss_scaling.growth_interval", I(2000)),
            ("train.loss_scaling.hysteresis", I(1)),
        ]),
    },
    Flag { names: &["fp16_init_scale"], meaning: Number(INITIAL_SCALE) },
    Flag { names: &["min_loss_scale"], meaning: Number(LEAST_SCALE) },
    Flag { names: &["distributed_world_size"], meaning: Special(|job, value| job.processes.together(value)) },
    Flag { names: &["distributed_num_procs", "nprocs_per_node"], meaning: Special(|job, value| job.processes.per_node(value)) },
    Flag { names: &["model_parallel_size"], meaning: Must(1.0, ONE_DEVICE) },
    Flag { names: &["num_shards"], meaning: Must(1.0, DEFAULT_SHARD) },
    Flag { names: &["shard_id"], meaning: Must(0.0, DEFAULT_SHARD) },
    Flag { names: &["zero_sharding"], meaning: Choice(&[("none", &[]), ("os", &[(ZERO, I(1))])]) },
    Flag { names: &["pipeline_model_parallel", "use_bmuf"], meaning: NoSwitch(ONE_DEVICE) },
    Flag {
        names: &["dataset_impl"],
        meaning: Only(&["mmap"], "fairseq's mmap files are read here; write them with --dataset-impl mmap"),
    },
    Flag { names: &["user_dir"], meaning: Refused("the trainer runs no code but its own; give a command without it") },
    Flag { names: &["curriculum"], meaning: Must(0.0, ORDER) },
    Flag { names: &["restore_file"], meaning: Only(&["checkpoint_last.pt"], NO_PICKLES) },
    Flag { names: &["finetune_from_model", "continue_once"], meaning: Refused(NO_PICKLES) },
    Flag { names: &["no_save"], meaning: SwitchTo(&[(UNSAVED, Yes)]) },
];

pub(super) const OF_THE_MODEL: &[Flag] = &[
    Flag { names: &["decoder_layers"], meaning: Whole("model.layers") },
    Flag { names: &["decoder_attention_heads"], meaning: Whole("model.heads") },
    Flag { names: &["decoder_embed_dim"], meaning: Whole("model.width") },
    Flag { names: &["decoder_ffn_embed_dim"], meaning: Whole(NETWORK) },
    Flag { names: &["decoder_input_dim"], meaning: Whole(INPUT) },
    Flag { names: &["decoder_output_dim"], meaning: Whole(OUTPUT) },
    Flag { names: &["max_target_positions"], meaning: Whole(CONTEXT) },
    Flag { names: &["dropout"], meaning: Number("train.dropout") },
    Flag { names: &["attention_dropout"], meaning: Number("train.attention_dropout") },
    Flag { names: &["activation_dropout", "relu_dropout"], meaning: Must(0.0, ACTIVATION_DROPOUT) },
    Flag {
        names: &["activation_fn"],
        meaning: Only(&["gelu"], "fairseq's variant has GELU by the error function here; give gelu"),
    },
    Flag { names: &["share_decoder_input_output_embed"], meaning: SwitchTo(&[(SHARED, Yes)]) },
    Flag {
        names: &["decoder_normalize_before"],
        meaning: Switch("fairseq's language models have a norm before each half of a block anyway"),
    },
    Flag { names: &["no_decoder_final_norm"], meaning: NoSwitch("there is a layer norm at the end here") },
    Flag { names: &["no_token_positional_embeddings", "decoder_learned_pos"], meaning: NoSwitch(SINES) },
    Flag { names: &["no_scale_embedding"], meaning: NoSwitch("embeddings are multiplied by the root of the width here") },
    Flag { names: &["layernorm_embedding", "scale_fc", "scale_attn", "scale_heads", "scale_resids"], meaning: NoSwitch(BLOCK_OF) },
    Flag { names: &["decoder_layerdrop", "base_layers"], meaning: Must(0.0, BLOCK_OF) },
    Flag { names: &["decoder_layers_to_keep", "decoder_xformers_att_config"], meaning: Refused(BLOCK_OF) },
    Flag { names: &["adaptive_input", "character_embeddings"], meaning: NoSwitch("there is one embedding for each token here") },
    Flag { names: &["adaptive_softmax_cutoff"], meaning: Refused(SOFTMAX) },
    Flag { names: &["quant_noise_pq", "quant_noise_scalar"], meaning: Must(0.0, "weights get no noise here; give 0") },
    Flag { names: &["quantization_config_path"], meaning: Refused("weights are not quantised here") },
    Flag { names: &["self_target", "past_target", "add_bos_token"], meaning: NoSwitch(ONLY_THE_NEXT) },
    Flag { names: &["future_target"], meaning: Switch(ONLY_THE_NEXT) },
    Flag { names: &["output_dictionary_size"], meaning: Must(-1.0, "all tokens are predicted here; give -1") },
    Flag { names: &["shorten_method"], meaning: Only(&["none"], FULL_BLOCKS) },
    Flag { names: &["store_ema"], meaning: NoSwitch(NO_AVERAGE) },
    Flag {
        names: &[
            "adaptive_softmax_dropout",
            "adaptive_softmax_factor",
            "adaptive_input_factor",
            "adaptive_input_cutoff",
            "character_filters",
            "character_embedding_dim",
            "char_embedder_highway_layers",
            "quant_noise_pq_block_size",
            "base_sublayers",
            "base_shuffle",
            "ema_decay",
            "ema_start_update",
            "ema_seed_model",
            "ema_update_freq",
        ],
        meaning: Nothing(WITH_IT),
    },
    Flag { names: &["tie_adaptive_weights", "tie_adaptive_proj", "ema_fp32"], meaning: Switch(WITH_IT) },
];

pub(super) const OF_THE_SCHEDULE: &[Flag] = &[
    Flag {
        names: &["lr_scheduler"],
        meaning: Choice(&[
            ("cosine", &[("train.schedule", W("cosine"))]),
            ("fixed", &[("train.schedule", W("constant"))]),
            ("polynomial_decay", &[("train.schedule", W("polynomial"))]),
        ]),
    },
    Flag { names: &["warmup_updates"], meaning: Whole("train.warmup_steps") },
    Flag { names: &["warmup_init_lr"], meaning: Number("train.warmup_learning_rate") },
    Flag { names: &["min_lr", "end_learning_rate"], meaning: Number("train.min_learning_rate") },
    Flag { names: &["power"], meaning: Number("train.power") },
    Flag { names: &["total_num_update"], meaning: Number(TOTAL) },
    Flag { names: &["stop_min_lr"], meaning: Must(-1.0, "a run ends by its number of updates here; give -1") },
    Flag { names: &["lr_period_updates"], meaning: Number(PERIOD) },
    Flag { names: &["lr_shrink"], meaning: Nothing(UNSHRUNK) },
    Flag { names: &["t_mult"], meaning: Must(1.0, ONE_PERIOD) },
    Flag { names: &["force_anneal", "fa"], meaning: Refused("a schedule follows updates here, not epochs") },
    Flag {
        names: &[
            "lr_threshold",
            "lr_patience",
            "lr_deacy_period",
            "lr_decay",
            "warmup_steps",
            "hold_steps",
            "decay_steps",
            "phase_ratio",
            "init_lr_scale",
            "final_lr_scale",
            "max_lr",
        ],
        meaning: Refused(OTHER_SCHEDULE),
    },
    Flag { names: &["shrink_min"], meaning: NoSwitch(OTHER_SCHEDULE) },
];

/// Flags for things that fairseq does in its own way, and a job in another.
pub(super) const OF_ITS_OWN: &[Flag] = &[
    Flag { names: &["log_format", "log_file"], meaning: Nothing(OWN_LOG) },
    Flag { names: &["no_progress_bar", "reset_logging", "suppress_crashes", "debug_param_names"], meaning: Switch(OWN_LOG) },
    Flag { names: &["aim_repo", "aim_run_hash", "wandb_project"], meaning: Nothing(TRACKERS) },
    Flag { names: &["azureml_logging"], meaning: Switch(TRACKERS) },
    Flag { names: &["save_dir", "tensorboard_logdir", "checkpoint_suffix"], meaning: Nothing(NAMED_BY_JOB) },
    Flag {
        names: &["no_epoch_checkpoints", "no_last_checkpoints", "no_save_optimizer_state"],
        meaning: Switch("a job keeps its newest checkpoints whole, so that it can go on from them"),
    },
    Flag { names: &["checkpoint_shard_count"], meaning: Nothing("a checkpoint is whole") },
    Flag {
        names: &["write_checkpoints_asynchronously", "save_async", "load_checkpoint_on_all_dp_ranks"],
        meaning: Switch("checkpoints are written beside the training"),
    },
    Flag { names: &["reset_dataloader", "reset_lr_scheduler", "reset_meters", "reset_optimizer"], meaning: Switch(OWN_RUN) },
    Flag { names: &["optimizer_overrides"], meaning: Nothing(OWN_RUN) },
    Flag { names: &["num_workers", "data_buffer_size", "plasma_path"], meaning: Nothing(OWN_LOADER) },
    Flag { names: &["use_plasma_view"], meaning: Switch(OWN_LOADER) },
    Flag { names: &["grouped_shuffling", "update_epoch_batch_itr", "update_ordered_indices_seed"], meaning: Switch(ORDER) },
    Flag { names: &["required_seq_len_multiple", "shorten_data_split_list"], meaning: Nothing(FULL_BLOCKS) },
    Flag {
        names: &["skip_invalid_size_inputs_valid_test", "skip_remainder_batch", "pad_to_fixed_length", "pad_to_fixed_bsz"],
        meaning: Switch(FULL_BLOCKS),
    },
    Flag { names: &["max_tokens_valid", "batch_size_valid", "max_sentences_valid"], meaning: Nothing(TOKEN_WEIGHTED) },
    Flag { names: &["fixed_validation_seed", "gen_subset"], meaning: Nothing("an evaluation draws nothing at random") },
    Flag {
        names: &["combine_valid_subsets", "combine_val", "ignore_unused_valid_subsets"],
        meaning: Switch("there is one validation split"),
    },
    Flag {
        names: &["fp16_scale_window", "fp16_scale_tolerance", "threshold_loss_scale"],
        meaning: Nothing("it goes with --fp16, which is refused"),
    },
    Flag { names: &["amp_init_scale"], meaning: Nothing("fairseq begins with --fp16-init-scale, even with --amp") },
    Flag { names: &["amp_scale_window"], meaning: Whole("train.loss_scaling.growth_interval") },
    Flag {
        names: &["amp_batch_retries"],
        meaning: Nothing("a step that overflows changes no weight, and its data is not read again"),
    },
    Flag { names: &["fp16_no_flatten_grads", "on_cpu_convert_precision"], meaning: Switch(OWN_KERNELS) },
    Flag { names: &["empty_cache_freq", "all_gather_list_size", "min_params_to_wrap"], meaning: Nothing(OWN_KERNELS) },
    Flag {
        names: &[
            "ddp_backend",
            "ddp_comm_hook",
            "bucket_cap_mb",
            "distributed_rank",
            "distributed_backend",
            "distributed_init_method",
            "distributed_port",
            "device_id",
            "local_rank",
            "heartbeat_timeout",
            "slowmo_momentum",
            "slowmo_base_algorithm",
            "localsgd_frequency",
            "pipeline_balance",
            "pipeline_devices",
            "pipeline_chunks",
            "pipeline_encoder_balance",
            "pipeline_encoder_devices",
            "pipeline_decoder_balance",
            "pipeline_decoder_devices",
            "pipeline_checkpoint",
            "block_lr",
            "block_momentum",
            "global_sync_iter",
            "warmup_iterations",
        ],
        meaning: Nothing(OWN_PROCESSES),
    },
    Flag {
        names: &[
            "distributed_no_spawn",
            "fix_batches_to_gpus",
            "find_unused_parameters",
            "gradient_as_bucket_view",
            "fast_stat_sync",
            "broadcast_buffers",
            "no_reshard_after_forward",
            "fp32_reduce_scatter",
            "cpu_offload",
            "use_sharded_state",
            "not_fsdp_flatten_parameters",
            "use_nbm",
            "average_sync",
        ],
        meaning: Switch(OWN_PROCESSES),
    },
];
