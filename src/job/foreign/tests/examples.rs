//! The example commands of other programs' documentation: each becomes a job that is valid, or is refused for a reason that is
//! true. What a shell would fill in (`$TEXT`) is filled in.

use super::*;

/// A job, or for each line of the refusal a part of it.
type Played = Result<(), &'static [&'static str]>;

#[track_caller]
fn plays(command: &str, expected: Played, read: Read<'_>) {
    match (translate(command, read), expected) {
        (Ok(translated), Ok(())) => {
            JobSpec::parse(&translated.text, "job.toml").unwrap_or_else(|error| panic!("{command}\n{error}\n{}", translated.text));
        }
        (Err(refused), Err(parts)) => {
            let lines: Vec<&str> = refused.what.lines().filter(|line| !line.ends_with("cannot be translated:")).collect();
            assert_eq!(lines.len(), parts.len(), "{command}\n{lines:#?}");
            for part in parts {
                assert!(refused.what.contains(part), "{part} is not in {lines:#?}");
            }
        }
        (Ok(translated), Err(_)) => panic!("{command} became\n{}", translated.text),
        (Err(refused), Ok(())) => panic!("{command} was refused: {}", refused.what),
    }
}

const MASKED: &[&str] = &["trains a model that fills gaps in a text"];
const PERMUTED: &[&str] = &["trains a model that predicts tokens in any order"];
const MIDDLE: &[&str] = &["moves the middle of a text to its end"];

#[test]
fn those_of_transformers_language_modelling() {
    let tail = "--per_device_train_batch_size 8 --per_device_eval_batch_size 8 --do_train --do_eval --output_dir /tmp/test-clm";
    let wikitext = "--dataset_name wikitext --dataset_config_name wikitext-2-raw-v1";
    let own = "--train_file path_to_train_file --validation_file path_to_validation_file";
    let rows: [(String, Played); 16] = [
        (format!("python run_clm.py --model_name_or_path openai-community/gpt2 {wikitext} {tail}"), Ok(())),
        (format!("python run_clm.py --model_name_or_path openai-community/gpt2 {own} {tail}"), Ok(())),
        (format!("python run_clm_no_trainer.py {wikitext} --model_name_or_path gpt2 --output_dir /tmp/test-clm"), Ok(())),
        (format!("accelerate launch run_clm_no_trainer.py {own} --model_name_or_path gpt2 --output_dir /tmp/test-clm"), Ok(())),
        (format!("python run_fim.py --model_name_or_path gpt2 {wikitext} --fim_rate 0.5 --fim_spm_rate 0.2 {tail}"), Err(MIDDLE)),
        (format!("python run_fim.py --model_name_or_path gpt2 {own} --fim_rate 0.5 --fim_spm_rate 0.2 {tail}"), Err(MIDDLE)),
        (format!("python run_fim_no_trainer.py --model_name_or_path gpt2 {wikitext} --fim_rate 0.5 --output_dir out"), Err(MIDDLE)),
        (format!("python run_mlm.py --model_name_or_path FacebookAI/roberta-base {wikitext} {tail}"), Err(MASKED)),
        (format!("python run_mlm.py --model_name_or_path FacebookAI/roberta-base {own} {tail}"), Err(MASKED)),
        (format!("python run_mlm_no_trainer.py {wikitext} --model_name_or_path roberta-base --output_dir out"), Err(MASKED)),
        (format!("python run_plm.py --model_name_or_path=xlnet/xlnet-base-cased {wikitext} {tail}"), Err(PERMUTED)),
        (format!("python run_plm.py --model_name_or_path=xlnet/xlnet-base-cased {own} {tail}"), Err(PERMUTED)),
        // Its `\ ` is a word of its own; its end is left to the reader.
        (
            format!(
                "python run_clm.py --model_type openai-community/gpt2 --tokenizer_name openai-community/gpt2 \
                 --config_overrides=\"n_embd=1024,n_head=16,n_layer=48,n_positions=102\" {own}"
            ),
            Err(&["--model_type: `openai-community/gpt2` does not exist here; values: gpt2"]),
        ),
        (
            format!(
                "python run_clm.py --model_type gpt2 --tokenizer_name gpt2 \
                 --config_overrides=\"n_embd=1024,n_head=16,n_layer=48,n_positions=102\" {own}"
            ),
            Ok(()),
        ),
        (
            format!("python run_clm.py --model_name_or_path gpt2 {own} --streaming --max_steps 1000 --do_train --output_dir out"),
            Ok(()),
        ),
        (format!("python run_clm.py --model_name_or_path gpt2 {own} --low_cpu_mem_usage --do_train --output_dir out"), Ok(())),
    ];
    for (command, expected) in rows {
        plays(&command, expected, NOTHING);
    }
}

/// Those of its other pages: several GPUs, TPUs, other frameworks, what became of the scripts.
#[test]
fn those_of_transformers_other_pages() {
    let job = "--model_name_or_path gpt2 --train_file a.txt --do_train --output_dir out";
    let several = "--model_name_or_path gpt2 --dataset_name wikitext --dataset_config_name wikitext-2-raw-v1 --do_train \
        --output_dir /tmp/test-clm --per_device_train_batch_size 4 --max_steps 200";
    let rows: [(String, Played); 17] = [
        (format!("CUDA_VISIBLE_DEVICES=0,1 python examples/pytorch/language-modeling/run_clm.py {several}"), Ok(())),
        (format!("python -m torch.distributed.launch --nproc_per_node 2 examples/pytorch/language-modeling/run_clm.py {several}"), Ok(())),
        (format!("NCCL_P2P_DISABLE=1 CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 run_clm.py {several}"), Ok(())),
        // Its page writes `--nnode`.
        (
            format!("torchrun --nproc_per_node=2 --nnode=2 --node_rank=0 --master_addr=hostname1 --master_port=9901 run_clm.py {job}"),
            Ok(()),
        ),
        (format!("accelerate launch --multi_gpu --num_machines 1 --num_processes 8 run_clm.py {job}"), Ok(())),
        (format!("deepspeed --num_gpus=1 run_clm.py {job} --gradient_accumulation 2"), Ok(())),
        (format!("python xla_spawn.py --num_cores 8 run_clm.py {job}"), Err(&["--num_cores: it is a number of TPUs"])),
        ("python run_clm.py --model_name_or_path distilgpt2 --output_dir output --train_file train_file_path".to_owned(), Ok(())),
        (format!("python run_clm.py {job} --push_to_hub"), Err(&["--push_to_hub: nothing is sent to a hub"])),
        (format!("python run_clm.py {job} --max_train_samples 50"), Err(&["--max_train_samples: give data.limit_bytes"])),
        (
            "python run_clm.py --model_name_or_path gpt2 --validation_file a.txt --do_eval --output_dir out".to_owned(),
            Err(&["--do_eval: without --do_train nothing is trained; `ftctl eval` evaluates a model"]),
        ),
        ("python run_clm_flax.py --output_dir=./norwegian-gpt2 --model_type=gpt2".to_owned(), Err(&["an optimizer and flags of its own"])),
        ("python run_mlm_flax.py --output_dir=./norwegian-roberta-base --model_type=roberta".to_owned(), Err(MASKED)),
        ("python run_t5_mlm_flax.py --output_dir=./norwegian-t5-base --model_type=t5".to_owned(), Err(&["mends a text"])),
        ("python run_bart_dlm_flax.py --output_dir ./norwegian-bart-base".to_owned(), Err(&["mends a text"])),
        (
            "python run_language_modeling.py --output_dir=output --model_type=gpt2 --model_name_or_path=gpt2 --do_train \
             --train_data_file=a.txt --do_eval --eval_data_file=b.txt"
                .to_owned(),
            Ok(()),
        ),
        (
            "python run_language_modeling.py --output_dir=output --model_type=roberta --model_name_or_path=roberta-base --do_train \
             --train_data_file=a.txt --mlm"
                .to_owned(),
            Err(&["--model_type: `roberta` does not exist here", "--mlm: it trains a model that fills gaps in a text"]),
        ),
    ];
    for (command, expected) in rows {
        plays(&command, expected, NOTHING);
    }
    let translated = translate("python run_clm.py --model_name_or_path gpt2 --train_file a.txt --output_dir out", NOTHING).unwrap();
    assert!(translated.notes.iter().any(|note| note.starts_with("--do_train: without it the program trains nothing")));
}

const OTHER_OPTIMIZER: &str = "belongs to an optimizer that is not translated";
const OTHER_SCHEDULE: &str = "belongs to a schedule that does not exist here";
const UNCORRECTED: &str = "bias_correction: the moments are always corrected";
const FLOAT32: &str = "weights are trained and kept in float32 here";
const ONE_DEVICE: &str = "tensor_parallel: a model is on one device here";

/// The configurations of its tutorials, with run_clm.py; what stands for anything (`...`) is left out.
const TUTORIALS: [(&str, &str, Played); 30] = [
    (
        "lrrt",
        r#"{"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.0001, "lr_range_test_step_size": 200}}}"#,
        Err(&["scheduler.type: `LRRangeTest` does not exist here", OTHER_SCHEDULE, OTHER_SCHEDULE]),
    ),
    (
        "one-cycle",
        r#"{"scheduler": {"type": "OneCycle", "params": {"cycle_first_step_size": 1000, "cycle_min_lr": 0.0001}}}"#,
        Err(&["scheduler.type: `OneCycle` does not exist here", OTHER_SCHEDULE, OTHER_SCHEDULE]),
    ),
    (
        "sparse-attention",
        r#"{"sparse_attention": {"mode": "fixed", "block": 16, "different_layout_per_head": true, "num_local_blocks": 4}}"#,
        Err(&["sparse_attention: each token attends to all before it here"]),
    ),
    (
        "training, activation checkpointing",
        r#"{"activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true, "contiguous_memory_optimization": true}}"#,
        Ok(()),
    ),
    ("comms-logging", r#"{"comms_logger": {"enabled": true, "verbose": false, "prof_all": true, "debug": false}}"#, Ok(())),
    (
        "zero-inference",
        r#"{"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 5e8, "stage3_param_persistence_threshold": 1e5,
                "stage3_max_live_parameters": 1e9, "offload_param": {"device": "nvme", "pin_memory": true, "nvme_path": "/local_nvme"}},
            "aio": {"block_size": 131072, "queue_depth": 16, "single_submit": false, "overlap_events": true, "intra_op_parallelism": 1}}"#,
        Ok(()),
    ),
    (
        "getting-started",
        r#"{"train_batch_size": 8, "gradient_accumulation_steps": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.00015}},
                "fp16": {"enabled": true}, "zero_optimization": true}"#,
        Ok(()),
    ),
    (
        "cifar-10",
        r#"{"train_batch_size": 4, "steps_per_print": 2000,
                "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
                "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}},
                "wall_clock_breakdown": false}"#,
        Ok(()),
    ),
    (
        "gan",
        r#"{"train_batch_size": 64, "optimizer": {"type": "Adam", "params": {"lr": 0.0002, "betas": [0.5, 0.999], "eps": 1e-8}},
                "steps_per_print": 10}"#,
        Ok(()),
    ),
    (
        "bert-pretraining",
        r#"{"train_batch_size": 4096, "train_micro_batch_size_per_gpu": 64, "steps_per_print": 1000, "optimizer": {"type": "Adam",
                    "params": {"lr": 2e-4, "max_grad_norm": 1.0, "weight_decay": 0.01, "bias_correction": false}}, "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}}"#,
        Err(&[UNCORRECTED, "max_grad_norm: DeepSpeed refuses it, too"]),
    ),
    (
        "curriculum-learning",
        r#"{"train_batch_size": 4096, "gradient_accumulation_steps": 1, "steps_per_print": 1,
                "optimizer": {"type": "Adam", "params": {"lr": 0.00015, "max_grad_norm": 1.0, "betas": [0.9, 0.95]}}, "gradient_clipping": 1.0,
                "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "consecutive_hysteresis": false,
                "min_loss_scale": 1}, "curriculum_learning": {"enabled": true, "curriculum_type": "seqlen", "min_difficulty": 8}}"#,
        Err(&["curriculum_learning: every block has the same length", "max_grad_norm: DeepSpeed refuses it, too"]),
    ),
    (
        "progressive_layer_dropping",
        r#"{"train_batch_size": 4096, "train_micro_batch_size_per_gpu": 16, "prescale_gradients": true, "gradient_predivide_factor": 8,
                "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "weight_decay": 0.01, "bias_correction": false}},
                "gradient_clipping": 1.0, "progressive_layer_drop": {"enabled": true, "theta": 0.5, "gamma": 0.001}}"#,
        Err(&[UNCORRECTED, "progressive_layer_drop: every step computes all layers"]),
    ),
    (
        "MoQ-tutorial",
        r#"{"optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "weight_decay": 0.0, "bias_correction": true}}, "gradient_clipping": 1.0,
                "fp16": {"initial_scale_power": 16, "enabled": true}, "quantize_training": {"enabled": true, "quantize_groups": 8}}"#,
        Err(&[FLOAT32]),
    ),
    (
        "onebit-adam",
        r#"{"train_batch_size": 4096, "train_micro_batch_size_per_gpu": 16, "steps_per_print": 100, "prescale_gradients": false,
                    "optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4, "freeze_step": 23000, "cuda_aware": false, "comm_backend_name": "nccl"}}, "gradient_clipping": 1.0, "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16}}"#,
        Err(&[OTHER_OPTIMIZER, OTHER_OPTIMIZER, OTHER_OPTIMIZER, "optimizer.type: `OneBitAdam` does not exist here"]),
    ),
    (
        "zero-one-adam",
        r#"{"optimizer": {"type": "ZeroOneAdam", "params": {"lr": 1e-3, "var_freeze_step": 1000, "local_step_clipper": 16}}}"#,
        Err(&[OTHER_OPTIMIZER, OTHER_OPTIMIZER, "optimizer.type: `ZeroOneAdam` does not exist here"]),
    ),
    (
        "onebit-lamb",
        r#"{"optimizer": {"type": "OneBitLamb", "params": {"lr": 11e-3, "max_coeff": 0.3, "factor_threshold": 0.1}}}"#,
        Err(&[OTHER_OPTIMIZER, OTHER_OPTIMIZER, "optimizer.type: `OneBitLamb` does not exist here"]),
    ),
    ("zero, stage 1", r#"{"zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8}}"#, Ok(())),
    (
        "zero, stage 2",
        r#"{"zero_optimization": {"stage": 2, "contiguous_gradients": true, "overlap_comm": true, "reduce_scatter": true,
                "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8}}"#,
        Ok(()),
    ),
    (
        "zero, stage 3",
        r#"{"zero_optimization": {"stage": 3, "contiguous_gradients": true, "stage3_max_live_parameters": 1e9,
                "stage3_max_reuse_distance": 1e9, "stage3_prefetch_bucket_size": 1e7, "stage3_param_persistence_threshold": 1e5,
                "reduce_bucket_size": 1e7, "sub_group_size": 1e9, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}}"#,
        Ok(()),
    ),
    (
        "zero-offload",
        r#"{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "contiguous_gradients": true, "overlap_comm": true}}"#,
        Ok(()),
    ),
    (
        "zeropp",
        r#"{"zero_optimization": {"stage": 3, "reduce_bucket_size": 10000000, "reduce_scatter": true, "zero_quantized_weights": true,
                "zero_hpz_partition_size": 16, "zero_quantized_gradients": true, "contiguous_gradients": true, "overlap_comm": true}}"#,
        Ok(()),
    ),
    (
        "mixed_precision_zeropp",
        r#"{"zero_optimization": {"stage": 3, "zero_quantized_nontrainable_weights": true, "zero_hpz_partition_size": 16}}"#,
        Ok(()),
    ),
    (
        "zenflow",
        r#"{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                "zenflow": {"topk_ratio": 0.05, "select_strategy": "auto", "update_interval": 4}}}"#,
        Err(&["zero_optimization.zenflow: every gradient counts in its own step"]),
    ),
    (
        "autotp-training",
        r#"{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "bf16": {"enabled": true},
                "tensor_parallel": {"autotp_size": 4}}"#,
        Err(&[ONE_DEVICE]),
    ),
    (
        "autotuning",
        r#"{"train_micro_batch_size_per_gpu": "auto", "fp16": {"enabled": true}, "autotuning": {"enabled": true, "fast": false}}"#,
        Err(&["autotuning: it would choose other batches"]),
    ),
    ("flops-profiler", r#"{"flops_profiler": {"enabled": true, "profile_step": 1, "output_file": null}}"#, Ok(())),
    (
        "monitor",
        r#"{"tensorboard": {"enabled": true, "job_name": "train_bert"}, "wandb": {"enabled": true, "project": "my_project"},
                "comet": {"enabled": true}, "csv_monitor": {"enabled": true, "output_path": "output/ds_logs/"}}"#,
        Ok(()),
    ),
    ("universal-checkpointing", r#"{"checkpoint": {"load_universal": true}}"#, Ok(())),
    ("datastates-async-checkpointing", r#"{"datastates_ckpt": {"host_cache_size": 16}}"#, Ok(())),
    (
        "muon, of the reference",
        r#"{"optimizer": {"type": "Muon", "params": {"lr": 0.001, "momentum": 0.9, "weight_decay": 0.0, "muon_lr": 0.001, "ns_method": "gram"}},
                "zero_optimization": {"stage": 3, "save_muon_momentum_buffer_in_memory": true}}"#,
        Err(&[
            OTHER_OPTIMIZER,
            OTHER_OPTIMIZER,
            OTHER_OPTIMIZER,
            "optimizer.type: `Muon` has a learning rate for each of its two parts",
        ]),
    ),
];

#[test]
fn those_of_deepspeeds_tutorials() {
    for (tutorial, config, expected) in TUTORIALS {
        let command = format!("{SMALL} --output_dir {tutorial:?} --deepspeed ds_config.json");
        plays(&command, expected, &|_| Ok(config.to_owned()));
    }
}

const HALF: &str = "--fp16: weights and evaluation stay in float32 here";
const WIKITEXT: &str = "fairseq-train --task language_modeling data-bin/wikitext-103 --save-dir checkpoints";

#[test]
fn those_of_fairseqs_language_models() {
    let rows: [(String, Played); 6] = [
        (
            "fairseq-preprocess --only-source --trainpref wikitext-103/wiki.train.tokens --validpref wikitext-103/wiki.valid.tokens \
             --testpref wikitext-103/wiki.test.tokens --destdir data-bin/wikitext-103 --workers 20"
                .to_owned(),
            Err(&[
                "a job file is for training, and fairseq-preprocess does something else",
                "--only-source: ",
                "--testpref: ",
                "--workers: ",
                "data.format: ",
            ]),
        ),
        (
            format!(
                "{WIKITEXT} --arch transformer_lm --share-decoder-input-output-embed --dropout 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' \
                 --weight-decay 0.01 --clip-norm 0.0 --lr 0.0005 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-07 \
                 --tokens-per-sample 512 --sample-break-mode none --max-tokens 2048 --update-freq 16 --fp16 --max-update 50000"
            ),
            Err(&["--arch: `transformer_lm` does not exist here", "--lr-scheduler: `inverse_sqrt` does not exist here", HALF]),
        ),
        (
            format!(
                "{WIKITEXT} --arch transformer_lm_gpt --share-decoder-input-output-embed --dropout 0.1 --optimizer adam \
                 --adam-betas '(0.9, 0.98)' --weight-decay 0.01 --clip-norm 0.0 --lr 0.0005 --lr-scheduler polynomial_decay \
                 --warmup-updates 4000 --tokens-per-sample 512 --sample-break-mode none --max-tokens 2048 --update-freq 16 --amp \
                 --max-update 50000"
            ),
            Ok(()),
        ),
        (
            format!(
                "{WIKITEXT} --arch transformer_lm_wiki103 --max-update 286000 --lr 1.0 --t-mult 2 --lr-period-updates 270000 --lr-scheduler cosine \
                 --lr-shrink 0.75 --warmup-updates 16000 --warmup-init-lr 1e-07 --stop-min-lr 1e-09 --optimizer nag --min-lr 0.0001 \
                 --clip-norm 0.1 --criterion adaptive_loss --max-tokens 3072 --update-freq 3 --tokens-per-sample 3072 --seed 1 \
                 --sample-break-mode none --skip-invalid-size-inputs-valid-test --ddp-backend=legacy_ddp"
            ),
            Err(&[
                "--arch: `transformer_lm_wiki103` does not exist here",
                "--t-mult: a cosine has one period here",
                "--stop-min-lr: a run ends by its number of updates here",
                "--optimizer: `nag` does not exist here",
                "--criterion: `adaptive_loss` does not exist here",
            ]),
        ),
        (
            format!(
                "{WIKITEXT} --arch fconv_lm_dauphin_wikitext103 --adaptive-softmax-cutoff 10000,20000,200000 --dropout 0.2 \
                 --criterion adaptive_loss --optimizer nag --clip-norm 0.1 --weight-decay 5e-06 --lr 1.0 \
                 --lr-scheduler reduce_lr_on_plateau --lr-shrink 0.5 --max-tokens 1024 --tokens-per-sample 1024 --ddp-backend legacy_ddp \
                 --max-epoch 35"
            ),
            Err(&[
                "--arch: `fconv_lm_dauphin_wikitext103` does not exist here",
                "--adaptive-softmax-cutoff: there is one softmax over all tokens here",
                "--criterion: `adaptive_loss` does not exist here",
                "--optimizer: `nag` does not exist here",
                "--lr-scheduler: `reduce_lr_on_plateau` does not exist here",
            ]),
        ),
        (
            "fairseq-eval-lm data-bin/wikitext-103 --path checkpoints/checkpoint_best.pt --batch-size 2 --tokens-per-sample 512 \
             --context-window 400"
                .to_owned(),
            Err(&["fairseq-eval-lm cannot become a job: it trains nothing"]),
        ),
    ];
    for (command, expected) in rows {
        plays(&command, expected, NOTHING);
    }
}

/// Those of its other examples that train a language model.
#[test]
fn those_of_fairseqs_other_pages() {
    let rows: [(String, Played); 5] = [
        (
            "fairseq-hydra-train distributed_training.distributed_world_size=1 task.data=data-bin model=transformer_lm/transformer_lm_gpt"
                .to_owned(),
            Err(&["fairseq-hydra-train cannot become a job: it takes Hydra's settings"]),
        ),
        (
            "fairseq-train data-bin/wikitext-103-roberta-bpe-bin --ddp-backend fully_sharded --fp16 --fp16-init-scale 4 --cpu-offload \
             --checkpoint-activations --task language_modeling --tokens-per-sample 2048 --batch-size 8 --arch transformer_lm_gpt3_13 \
             --optimizer cpu_adam --adam-betas \"(0.9,0.98)\" --lr 0.0001 --lr-scheduler polynomial_decay --warmup-updates 5 \
             --total-num-update 10 --max-update 10 --no-save --log-format json --log-interval 1"
                .to_owned(),
            Err(&[HALF, "--arch: `transformer_lm_gpt3_13` does not exist here", "--optimizer: `cpu_adam` does not exist here"]),
        ),
        (
            "fairseq-train data-bin/ --task=language_modeling --arch=transformer_lm_big --share-decoder-input-output-embed --dropout=0.1 \
             --attention-dropout=0.1 --optimizer=adam --adam-betas='(0.9, 0.98)' --clip-norm=1.0 --lr=0.0005 --lr-scheduler=inverse_sqrt \
             --warmup-updates=4000 --warmup-init-lr=1e-07 --tokens-per-sample=3072 --update-freq=16 --max-tokens=4096 --num-workers=4 \
             --skip-invalid-size-inputs-valid-test --max-update=500000 --log-interval=10 --seed=100501 --fp16 --sample-break-mode=eos"
                .to_owned(),
            Err(&[
                "--arch: `transformer_lm_big` does not exist here",
                "--lr-scheduler: `inverse_sqrt` does not exist here",
                HALF,
                "--sample-break-mode: text is one stream here",
            ]),
        ),
        (
            "fairseq-train /path/to/data --task masked_lm --criterion masked_lm --arch roberta_base --tokens-per-sample 512 \
             --optimizer adam --lr 0.0005"
                .to_owned(),
            Err(&["--task: `masked_lm` does not exist here", "--criterion: `masked_lm` does not exist here", "--arch: `roberta_base`"]),
        ),
        // Its parser takes no beginning of a flag for the flag.
        (
            format!("{WIKITEXT} --arch transformer_lm_gpt --optimizer adam --lr 0.0005 --tokens-per 512 --max-tokens 2048 --max-update 9"),
            Err(&["--tokens-per: ftctl does not know this flag; did you mean --tokens-per-sample?"]),
        ),
    ];
    for (command, expected) in rows {
        plays(&command, expected, NOTHING);
    }
}
