//! Every flag of the programs has a place in a table: translated, noted, or refused for a reason. The names are those of run_clm.py
//! of transformers 4.57, of fairseq's last version (2025) and of DeepSpeed 0.19's documentation and configuration classes; those of
//! `TrainingArguments` and DeepSpeed's are asked of the installed packages, too (trainer/tests/oracle/flags.py, deepspeed_keys.py).

use super::*;

const RUN_CLM: &str = "model_name_or_path model_type config_overrides config_name tokenizer_name cache_dir use_fast_tokenizer model_revision token \
    trust_remote_code dtype torch_dtype low_cpu_mem_usage use_auth_token dataset_name dataset_config_name train_file validation_file \
    max_train_samples max_eval_samples streaming block_size overwrite_cache validation_split_percentage preprocessing_num_workers \
    keep_linebreaks";

const NO_TRAINER: &str = "dataset_name dataset_config_name train_file validation_file validation_split_percentage model_name_or_path config_name \
    tokenizer_name use_slow_tokenizer per_device_train_batch_size per_device_eval_batch_size learning_rate weight_decay num_train_epochs \
    max_train_steps gradient_accumulation_steps lr_scheduler_type num_warmup_steps output_dir seed model_type block_size \
    preprocessing_num_workers overwrite_cache no_keep_linebreaks push_to_hub hub_model_id hub_token trust_remote_code checkpointing_steps \
    resume_from_checkpoint with_tracking report_to low_cpu_mem_usage";

const FAIRSEQ_COMMON: &str = "no_progress_bar log_interval log_format log_file aim_repo aim_run_hash tensorboard_logdir wandb_project \
    azureml_logging seed cpu tpu bf16 memory_efficient_bf16 fp16 memory_efficient_fp16 fp16_no_flatten_grads fp16_init_scale \
    fp16_scale_window fp16_scale_tolerance on_cpu_convert_precision min_loss_scale threshold_loss_scale amp amp_batch_retries \
    amp_init_scale amp_scale_window user_dir empty_cache_freq all_gather_list_size model_parallel_size quantization_config_path profile \
    reset_logging suppress_crashes use_plasma_view plasma_path distributed_world_size distributed_num_procs distributed_rank \
    distributed_backend distributed_init_method distributed_port device_id local_rank distributed_no_spawn ddp_backend ddp_comm_hook \
    bucket_cap_mb fix_batches_to_gpus find_unused_parameters gradient_as_bucket_view fast_stat_sync heartbeat_timeout broadcast_buffers \
    slowmo_momentum slowmo_base_algorithm localsgd_frequency nprocs_per_node pipeline_model_parallel pipeline_balance pipeline_devices \
    pipeline_chunks pipeline_encoder_balance pipeline_encoder_devices pipeline_decoder_balance pipeline_decoder_devices \
    pipeline_checkpoint zero_sharding no_reshard_after_forward fp32_reduce_scatter cpu_offload use_sharded_state \
    not_fsdp_flatten_parameters num_workers skip_invalid_size_inputs_valid_test max_tokens batch_size max_sentences \
    required_batch_size_multiple required_seq_len_multiple dataset_impl data_buffer_size train_subset valid_subset combine_valid_subsets \
    combine_val ignore_unused_valid_subsets validate_interval validate_interval_updates validate_after_updates fixed_validation_seed \
    disable_validation max_tokens_valid batch_size_valid max_sentences_valid max_valid_steps nval curriculum gen_subset num_shards \
    shard_id grouped_shuffling update_epoch_batch_itr update_ordered_indices_seed max_epoch max_update stop_time_hours clip_norm \
    sentence_avg update_freq lr stop_min_lr use_bmuf skip_remainder_batch debug_param_names save_dir restore_file continue_once \
    finetune_from_model reset_dataloader reset_lr_scheduler reset_meters reset_optimizer optimizer_overrides save_interval \
    save_interval_updates keep_interval_updates keep_interval_updates_pattern keep_last_epochs keep_best_checkpoints no_save \
    no_epoch_checkpoints no_last_checkpoints no_save_optimizer_state best_checkpoint_metric maximize_best_checkpoint_metric patience \
    checkpoint_suffix checkpoint_shard_count load_checkpoint_on_all_dp_ranks write_checkpoints_asynchronously save_async block_lr \
    block_momentum global_sync_iter warmup_iterations use_nbm average_sync store_ema ema_decay ema_start_update ema_seed_model \
    ema_update_freq ema_fp32 task arch criterion optimizer lr_scheduler bpe tokenizer scoring";

const FAIRSEQ_MODEL: &str = "sample_break_mode tokens_per_sample output_dictionary_size self_target future_target past_target add_bos_token \
    max_target_positions shorten_method shorten_data_split_list pad_to_fixed_length pad_to_fixed_bsz activation_fn dropout \
    attention_dropout activation_dropout relu_dropout decoder_embed_dim decoder_output_dim decoder_input_dim decoder_ffn_embed_dim \
    decoder_layers decoder_attention_heads decoder_normalize_before no_decoder_final_norm adaptive_softmax_cutoff \
    adaptive_softmax_dropout adaptive_softmax_factor no_token_positional_embeddings share_decoder_input_output_embed \
    character_embeddings character_filters character_embedding_dim char_embedder_highway_layers adaptive_input adaptive_input_factor \
    adaptive_input_cutoff tie_adaptive_weights tie_adaptive_proj decoder_learned_pos layernorm_embedding no_scale_embedding \
    checkpoint_activations offload_activations decoder_layerdrop decoder_layers_to_keep quant_noise_pq quant_noise_pq_block_size \
    quant_noise_scalar min_params_to_wrap base_layers base_sublayers base_shuffle scale_fc scale_attn scale_heads scale_resids \
    decoder_xformers_att_config adam_betas adam_eps weight_decay use_old_adam fp16_adam_stats momentum warmup_updates warmup_init_lr \
    min_lr t_mult lr_period_updates lr_shrink force_anneal fa end_learning_rate power total_num_update lr_threshold lr_patience \
    lr_deacy_period lr_decay warmup_steps hold_steps decay_steps phase_ratio init_lr_scale final_lr_scale max_lr shrink_min";

#[test]
fn every_flag_of_the_programs_has_a_place() {
    for (program, names) in [
        (&transformers::RUN_CLM, RUN_CLM),
        (&transformers::NO_TRAINER, NO_TRAINER),
        (&fairseq::TRAIN, FAIRSEQ_COMMON),
        (&fairseq::TRAIN, FAIRSEQ_MODEL),
    ] {
        let known: Vec<&str> = program.flags.iter().copied().flatten().flat_map(|flag| flag.names).copied().collect();
        let missing: Vec<&str> = names.split_whitespace().filter(|name| !known.contains(name)).collect();
        assert!(missing.is_empty(), "{} has no place for {missing:?}", program.names[0]);
    }
}

/// The sections, each with its keys.
const DEEPSPEED: &[(&str, &str)] = &[
    (
        "",
        "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps managed_gradient_accumulation communication_data_type \
         seq_parallel_communication_data_type gradient_allreduce_op prescale_gradients gradient_predivide_factor sparse_gradients \
         disable_allgather gradient_clipping zero_allow_untested_optimizer zero_force_ds_cpu_optimizer steps_per_print wall_clock_breakdown \
         memory_breakdown dump_state log_level dataloader_drop_last graph_harvesting use_data_before_expert_parallelism \
         data_parallel_group ddp_bf16 zero_optimization allgather_size disable_python_gc sequence_parallel_size vocabulary_size",
    ),
    (
        "optimizer",
        "type params.lr params.betas.0 params.betas.1 params.eps params.weight_decay params.torch_adam params.adam_w_mode \
         params.bias_correction params.amsgrad params.fp32_optimizer_states params.max_grad_norm params.freeze_step params.cuda_aware \
         params.comm_backend_name params.var_freeze_step params.var_update_scaler params.local_step_scaler params.local_step_clipper \
         params.max_coeff params.min_coeff params.coeff_beta params.factor_max params.factor_min params.factor_threshold params.momentum \
         params.muon_lr params.adam_lr params.ns_method params.fused params.foreach params.capturable params.differentiable \
         params.maximize params.decoupled_weight_decay params.eps_inside_sqrt params.initial_accumulator_value params.lr_decay \
         params.set_grad_none legacy_fusion",
    ),
    (
        "scheduler",
        "type params.warmup_min_lr params.warmup_max_lr params.warmup_num_steps params.warmup_type params.total_num_steps \
         params.warmup_min_ratio params.cos_min_ratio params.lr_range_test_min_lr params.lr_range_test_step_rate \
         params.lr_range_test_step_size params.lr_range_test_staircase params.cycle_min_lr params.cycle_max_lr params.decay_lr_rate \
         params.cycle_first_step_size params.cycle_second_step_size params.cycle_first_stair_count params.cycle_second_stair_count \
         params.decay_step_size params.cycle_momentum params.cycle_min_mom params.cycle_max_mom params.decay_mom_rate \
         params.last_batch_iteration",
    ),
    (
        "fp16",
        "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale \
         fp16_master_weights_and_grads",
    ),
    ("bf16", "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states"),
    ("bfloat16", "enabled immediate_grad_update check_grad_overflow bf16_master_weights_and_grads bf16_optimizer_states"),
    ("amp", "enabled opt_level loss_scale"),
    ("torch_autocast", "enabled dtype lower_precision_safe_modules"),
    ("data_types", "grad_accum_dtype param_dtype buffer_dtype keep_in_fp32_modules"),
    (
        "zero_optimization",
        "stage allgather_partitions allgather_bucket_size overlap_comm reduce_scatter reduce_bucket_size contiguous_gradients \
         use_multi_rank_bucket_allreduce load_from_fp32_weights elastic_checkpoint grad_hooks round_robin_gradients sub_group_size \
         cpu_offload cpu_offload_param cpu_offload_use_pin_memory stage3_max_live_parameters stage3_max_reuse_distance \
         stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_model_persistence_threshold \
         stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save stage3_module_granularity_threshold \
         stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential ignore_unused_parameters legacy_stage1 zero_hpz_partition_size \
         zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients zeropp_loco_param.err_beta mics_shard_size \
         mics_hierarchical_params_gather memory_efficient_linear pipeline_loading_checkpoint override_module_apply \
         log_trace_cache_warnings enable_sanity_checks max_live_parameters max_reuse_distance prefetch_bucket_size \
         param_persistence_threshold gather_16bit_weights_on_model_save module_granularity_threshold \
         use_all_reduce_for_fetch_params allgather_sequential parameter_alignment compute_grad_norm \
         save_muon_momentum_buffer_in_memory leaf_module.classes zenflow.topk_ratio",
    ),
    (
        "zero_optimization.offload_optimizer",
        "device nvme_path pin_memory ratio buffer_count fast_init pipeline_read pipeline_write super_offload cpuadam_cores_perc",
    ),
    ("zero_optimization.offload_param", "device nvme_path pin_memory buffer_count buffer_size max_in_cpu"),
    ("aio", "block_size queue_depth thread_count single_submit overlap_events"),
    ("tensor_parallel", "autotp_size preset_model tp_overlap_comm partition_config.layer_specs"),
    ("expert_parallel", "enabled autoep_size expert_tensor_parallel_size preset_model use_grouped_mm top_k"),
    ("hybrid_engine", "enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters enable_cuda_graph"),
    ("autotuning", "enabled results_dir exps_dir overwrite metric fast max_train_batch_size mp_size tuner_type arg_mappings"),
    ("flops_profiler", "enabled profile_step module_depth top_modules detailed output_file"),
    (
        "activation_checkpointing",
        "partition_activations cpu_checkpointing contiguous_memory_optimization number_checkpoints synchronize_checkpoint_boundary profile",
    ),
    ("sparse_attention", "mode block different_layout_per_head num_local_blocks num_global_blocks attention"),
    ("data_efficiency", "enabled seed data_routing.random_ltd.enabled data_sampling.curriculum_learning.enabled"),
    ("curriculum_learning", "enabled curriculum_type min_difficulty max_difficulty schedule_type schedule_config.difficulty_step"),
    ("progressive_layer_drop", "enabled theta gamma"),
    ("eigenvalue", "enabled verbose max_iter tol stability gas_boundary_resolution layer_name layer_num"),
    ("compression_training", "weight_quantization.shared_parameters layer_reduction.enabled"),
    ("quantize_training", "enabled quantize_verbose quantizer_kernel quantize_bits.start_bits"),
    ("elasticity", "enabled max_train_batch_size micro_batch_sizes min_gpus max_gpus min_time version"),
    ("tensorboard", "enabled output_path job_name"),
    ("wandb", "enabled group team project"),
    ("comet", "enabled workspace project samples_log_interval experiment_name experiment_key online mode"),
    ("csv_monitor", "enabled output_path job_name"),
    ("comms_logger", "enabled verbose prof_all debug prof_ops"),
    ("checkpoint", "tag_validation load_universal use_node_local_storage parallel_write.pipeline_stage"),
    ("nebula", "enabled persistent_storage_path"),
    ("datastates_ckpt", "host_cache_size"),
    ("compile", "enabled backend kwargs"),
    ("timers", "throughput.enabled"),
    ("pipeline", "stages partition activation_checkpoint_interval"),
    ("weight_quantization", "quantized_initialization post_init_quant"),
];

#[test]
fn every_key_of_deepspeed_has_a_place() {
    for (section, keys) in DEEPSPEED {
        for key in keys.split_whitespace() {
            let path = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
            let sections = path.match_indices('.').map(|(dot, _)| &path[..=dot]);
            let whole = format!("{path}.");
            let found = sections.chain([path.as_str(), whole.as_str()]).any(|path| deepspeed::find(path).is_some());
            assert!(found, "{path} has no place");
        }
    }
}

#[test]
fn a_flag_that_is_not_known_has_one_or_two_near_it() {
    for (command, flag, hint) in [
        (SMALL, "--eval_stps 9", "--eval_stps: ftctl does not know this flag; did you mean --eval_steps?"),
        (SMALL, "--bf17", "--bf17: ftctl does not know this flag; did you mean --bf16?"),
        (SMALL, "--fp16_full_evel", "did you mean --fp16_full_eval?"),
        (SMALL, "--hub_stratgy x", "did you mean --hub_strategy?"),
        (
            SMALL,
            "--train_batch_size 4",
            "--train_batch_size: ftctl does not know this flag; did you mean --per_device_train_batch_size or --per_gpu_train_batch_size?",
        ),
        (SMALL, "--epochs 4", "--epochs: ftctl does not know this flag; did you mean --num_train_epochs?"),
        (SMALL, "--frobnicate", "--frobnicate: ftctl does not know this flag"),
        (FAIRSEQ, "--decoder-layer 2", "--decoder-layer: ftctl does not know this flag; did you mean --decoder-layers?"),
        (FAIRSEQ, "--f16", "--f16: ftctl does not know this flag; did you mean --fp16 or --bf16?"),
    ] {
        let found = problems(&format!("{command} {flag}"));
        assert!(found.contains(hint) && found.lines().count() == 2, "{flag} gave {found}");
        assert!(refused(&format!("{command} {flag}")).fix.len() < 150, "no list of all");
    }
    let near = translate(&format!("{SMALL} --deepspeed ds.json"), &|_| Ok(r#"{"gradient_cliping": 1, "bufer": 2}"#.to_owned()));
    let found = near.expect_err("problems").what;
    assert!(found.contains("gradient_cliping: ftctl does not know this key; did you mean gradient_clipping?"), "{found}");
    assert!(
        found.lines().any(|line| line == "ds_config bufer: ftctl does not know this key; take it out to go on without it"),
        "{found}"
    );
}
