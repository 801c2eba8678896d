use ft_trainer::config::Variant;

use super::*;
use crate::job::spec::JobSpec;
use ft_trainer::config::{LossScaling, Offload, Precision};

const NOTHING: &dyn Fn(&str) -> Result<String, String> = &|file| Err(format!("there is no {file}"));

/// The job that a command line stands for.
fn job(command: &str) -> JobSpec {
    let translated = translate(command, NOTHING).unwrap_or_else(|problems| panic!("{problems}"));
    JobSpec::parse(&translated.text, "job.toml").unwrap_or_else(|error| panic!("{error}\n{}", translated.text))
}

fn problems(command: &str) -> String {
    translate(command, NOTHING).expect_err("it is not to be had")
}

/// ONNX Runtime's example, without its four devices.
const LANGUAGE_MODELING: &str = "python3 -m torch.distributed.launch --nproc_per_node 1 run_language_modeling.py --model_type=gpt2 \
    --model_name_or_path=gpt2 --tokenizer_name=gpt2 --config_name=gpt2 --per_gpu_train_batch_size=1 --per_gpu_eval_batch_size=4 \
    --gradient_accumulation_steps=16 --block_size=1024 --weight_decay=0.01 --logging_steps=100 --num_train_epochs=5 --output_dir=out \
    --do_train --train_data_file=wiki.train.raw --do_eval --eval_data_file='wiki valid.raw' --overwrite_output_dir --ort_trainer";

#[test]
fn run_language_modeling_becomes_a_job() {
    let job = job(LANGUAGE_MODELING);
    let expected = "weight_decay = 0.01\nepochs = 5.0\nmicro_batch = 1\ngradient_accumulation = 16\nblock_size = 1024\nlog_every = 100\n\
        schedule = \"linear\"\ncheckpoint_every = 500\ncompat = \"transformers-2020\"";
    let expected =
        JobSpec::parse(&format!("name = \"x\"\ndataset = \"d\"\n[model]\npreset = \"gpt2\"\n[train]\n{expected}\n"), "x");
    assert_eq!(job.train, expected.expect("valid").train);
    assert_eq!(job.initial_weights.as_deref(), Some("gpt2"));
    let data = job.data.expect("text");
    assert_eq!((data.train, data.validation), (vec!["wiki.train.raw".to_owned()], vec!["wiki valid.raw".to_owned()]));
    let notes = translate(LANGUAGE_MODELING, NOTHING).expect("a job").notes;
    for told in ["--ort_trainer: ", "--per_gpu_eval_batch_size: ", "--output_dir: ", "--do_train: ", "--model_name_or_path: "] {
        assert!(notes.iter().any(|note| note.starts_with(told)), "{told} is not in {notes:?}");
    }
}

const CLM: &str = "deepspeed --num_gpus=1 run_clm.py --deepspeed ds_config.json --model_name_or_path gpt2-xl --train_file train.csv \
    --validation_file validation.csv --do_train --do_eval --overwrite_cache --evaluation_strategy=\"steps\" --output_dir finetuned \
    --eval_steps 200 --save_steps 200 --num_train_epochs 1 --gradient_accumulation_steps 2 --per_device_train_batch_size 8";

#[test]
fn deepspeed_decides_what_the_flags_leave_to_it() {
    let config = r#"{
        "fp16": {"enabled": false, "loss_scale": 0}, "zero_optimization": {"stage": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95], "eps": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": 3e-5, "warmup_num_steps": 10}},
        "gradient_accumulation_steps": "auto", "train_batch_size": "auto", "gradient_clipping": 0.5, "steps_per_print": 2000
    }"#;
    let read = |file: &str| if file == "ds_config.json" { Ok(config.to_owned()) } else { Err(file.to_owned()) };
    let translated = translate(CLM, &read).expect("a job");
    let train = JobSpec::parse(&translated.text, "job.toml").expect("valid").train;
    let expected = "weight_decay = 0.0\nepochs = 1.0\nmicro_batch = 8\ngradient_accumulation = 2\nlog_every = 500\nbetas = [0.9, 0.95]\n\
        schedule = \"warmup-lr\"\nwarmup_steps = 10\nlearning_rate = 3e-5\nclip_norm = 0.5\ncheckpoint_every = 200\neval_every = 200";
    let expected = JobSpec::parse(&format!("name = \"x\"\ndataset = \"d\"\n[train]\n{expected}\n"), "x").expect("valid").train;
    assert_eq!(train, expected);
    assert!(translated.text.contains("# ds_config zero_optimization.stage: there is one process"), "{}", translated.text);
}

/// The configuration that GPT2-XL was fine-tuned with on one V100.
#[test]
fn half_precision_and_offloading_are_translated() {
    let config = r#"{
        "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
        "zero_optimization": {
            "stage": 2, "allgather_partitions": true, "allgather_bucket_size": 2e8, "overlap_comm": true, "reduce_scatter": true,
            "reduce_bucket_size": 2e8, "contiguous_gradients": true, "cpu_offload": true
        },
        "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false
    }"#;
    let train = |config: &str| {
        let translated = translate(&format!("{CLM} --fp16"), &|_| Ok(config.to_owned())).expect("a job");
        JobSpec::parse(&translated.text, "job.toml").expect("valid").train
    };
    let found = train(config);
    assert_eq!((found.precision, found.offload), (Precision::Fp16, Offload::Optimizer));
    assert_eq!(found.loss_scaling, LossScaling::default());
    let fixed = train(r#"{"fp16": {"enabled": true, "loss_scale": 128}}"#).loss_scaling;
    assert_eq!(fixed, LossScaling { initial: 128.0, minimum: 128.0, maximum: 128.0, ..LossScaling::default() });
}

#[test]
fn what_is_not_to_be_had_is_refused_by_name() {
    let config = r#"{"fp16": {"enabled": "maybe"}, "zero_optimization": {"offload_param": {"device": "cpu"}}, "bufer": 1}"#;
    let found = translate(&format!("{CLM} --fp16_full_eval"), &|_| Ok(config.to_owned())).expect_err("problems");
    for problem in [
        "--fp16_full_eval: weights and evaluation stay in float32 here",
        "ds_config fp16.enabled: `maybe` does not exist here",
        "ds_config zero_optimization.offload_param.device: not known here",
        "ds_config bufer: not known here",
    ] {
        assert!(found.contains(problem), "{problem} is not in\n{found}");
    }
    let base = "python run_clm.py --train_file a.txt";
    for (added, problem) in [
        ("--lerning_rate 1", "--lerning_rate: not known here; did you mean --learning_rate?"),
        ("--frobnicate", "--frobnicate: not known here, and near to nothing that is"),
        ("--learning-rate fast", "--learning-rate: `fast` is no number"),
        ("--optim sgd", "--optim: `sgd` does not exist here; values: "),
        ("--lr_scheduler_type cosin", "did you mean `cosine`?"),
        ("--seed", "--seed: it needs a value"),
        ("stray", "stray: a word that belongs to no flag"),
        ("--dataset_name wikitext", "--dataset_name: nothing is fetched from a hub"),
        ("--output_dir $OUT", "the command has a `$`"),
        ("; rm", "`;` is the shell's"),
        ("--output_dir 'a", "never closed"),
        ("--deepspeed none.json", "--deepspeed: there is no none.json"),
    ] {
        let found = problems(&format!("{base} {added}"));
        assert!(found.contains(problem), "{added} gave {found}");
    }
    assert!(problems("python train.py --lr 1").contains("names no program that is known here: run_clm.py"));
    assert!(problems(&LANGUAGE_MODELING.replace("node 1", "node 4")).contains("several devices does not exist here yet"));
}

const FAIRSEQ: &str = "fairseq-train --task language_modeling data-bin/openwebtext --batch-size 8 --update-freq 8 --max-update 100000 \
    --tokens-per-sample 1024 --sample-break-mode none --optimizer adam --adam-betas '(0.9, 0.95)' --weight-decay 0.1 --clip-norm 1.0 \
    --lr 6e-4 --lr-scheduler cosine --lr-period-updates 99000 --warmup-updates 1000 --warmup-init-lr 1e-07 --min-lr 0 --lr-shrink 0.1 \
    --t-mult 1 --save-interval-updates 2000 --keep-interval-updates 10 --log-interval 10 --num-workers 2 --tensorboard-logdir tb \
    --save-dir out --criterion cross_entropy --share-decoder-input-output-embed --dropout 0.1 --arch transformer_lm_gpt --no-epoch-checkpoints --checkpoint-activations";

#[test]
fn fairseq_train_becomes_a_job() {
    let job = job(FAIRSEQ);
    let expected = "weight_decay = 0.1\nweight_decay_on = \"all\"\nsteps = 100000\nmicro_batch = 8\ngradient_accumulation = 8\n\
        log_every = 10\nbetas = [0.9, 0.95]\nschedule = \"cosine\"\nwarmup_steps = 1000\nwarmup_learning_rate = 1e-7\n\
        learning_rate = 6e-4\nclip_norm = 1.0\ncheckpoint_every = 2000\nkeep_checkpoints = 10\nrecompute = \"full\"\nseed = 1\ncompat = \"fairseq\"\n\
        dropout = 0.1\nattention_dropout = 0.1";
    let expected = JobSpec::parse(&format!("name = \"x\"\ndataset = \"d\"\n[train]\n{expected}\n"), "x").expect("valid").train;
    assert_eq!(job.train, expected);
    assert_eq!(job.model.variant, Some(Variant::Fairseq));
    let data = job.data.expect("tokens");
    assert_eq!(
        (&data.train[0], &data.validation[0]),
        (&"data-bin/openwebtext/train.bin".to_owned(), &"data-bin/openwebtext/valid.bin".to_owned())
    );
    let found = problems(&format!("{FAIRSEQ} --activation-dropout 0.1 --fp16 --zero-sharding os --hpu --t-mult 2"));
    for problem in [
        "--activation-dropout: nothing is dropped inside the network",
        "--fp16: weights and evaluation stay in float32 here",
        "--zero-sharding: ",
        "--hpu: ",
        "--t-mult: ",
    ] {
        assert!(found.contains(problem), "{problem} is not in\n{found}");
    }
    assert!(problems(&FAIRSEQ.replace("99000", "100000")).contains("--lr-period-updates: a cosine has one period here"));
}

#[test]
fn a_switch_may_have_a_value() {
    let precision = |flag: &str| job(&format!("run_clm.py --train_file a.txt {flag}")).train.precision;
    assert_eq!(precision("--bf16"), precision("--bf16 True"));
    assert_eq!(precision("--bf16=false"), precision(""));
    assert_ne!(precision("--bf16"), precision(""));
    assert!(
        job("run_clm.py --train_file a.txt --eval_steps 100 --load_best_model_at_end --metric_for_best_model eval_loss")
            .train
            .keep_best
    );
}

#[test]
fn every_flag_has_one_meaning() {
    for program in PROGRAMS {
        let mut names: Vec<&str> = program.flags.iter().copied().flatten().flat_map(|flag| flag.names).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{:?}", program.names);
        assert!(names.iter().all(|name| !name.contains('-')));
    }
}
