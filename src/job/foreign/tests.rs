//! Command lines and the jobs that they become.
//!
//! One file for tests that share the small commands; examples of documentation, kinds of input and lists of flags have theirs.

mod examples;
mod kinds;
mod known;

use ft_trainer::settings::Variant;

use super::*;
use crate::job::spec::JobSpec;
use ft_trainer::settings::{DeviceChoice, EndOfText, LossScaling, Offload, Precision, Schedule, length::Length};

const NOTHING: &dyn Fn(&str) -> Result<String, String> = &|file| Err(format!("there is no {file}"));

/// The job that a command line stands for.
fn job(command: &str) -> JobSpec {
    let translated = translate(command, NOTHING).unwrap_or_else(|refused| panic!("{}", refused.what));
    JobSpec::parse(&translated.text, "job.toml").unwrap_or_else(|error| panic!("{error}\n{}", translated.text))
}

fn problems(command: &str) -> String {
    refused(command).what
}

fn refused(command: &str) -> Refused {
    translate(command, NOTHING).expect_err("it is refused")
}

fn notes(command: &str) -> Vec<String> {
    translate(command, NOTHING).unwrap_or_else(|refused| panic!("{}", refused.what)).notes
}

#[track_caller]
fn tells(notes: &[String], part: &str) {
    assert!(notes.iter().any(|note| note.contains(part)), "{part} is not in {notes:#?}");
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
        schedule = \"linear\"\ncheckpoint_every = 500\ncompat = \"transformers-2020\"\ndropout = 0.1\nattention_dropout = 0.1";
    let expected =
        JobSpec::parse(&format!("name = \"x\"\ndataset = \"d\"\n[model]\npreset = \"gpt2\"\n[train]\n{expected}\n"), "x");
    assert_eq!(job.train, expected.expect("valid").train);
    assert_eq!(job.initial_weights.as_deref(), Some("hf:openai-community/gpt2"));
    let data = job.data.expect("text");
    assert_eq!((data.train, data.validation), (vec!["wiki.train.raw".to_owned()], vec!["wiki valid.raw".to_owned()]));
    assert_eq!(data.end_of_text, Some(EndOfText::Split), "as its tokenizer does");
    let notes = notes(LANGUAGE_MODELING);
    for told in ["--ort_trainer: ", "--per_gpu_eval_batch_size: ", "--output_dir: ", "--do_train: "] {
        tells(&notes, told);
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
        schedule = \"warmup-lr\"\nwarmup_steps = 10\nlearning_rate = 3e-5\nclip_norm = 0.5\ncheckpoint_every = 200\neval_every = 200\n\
        dropout = 0.1\nattention_dropout = 0.1";
    let expected = JobSpec::parse(&format!("name = \"x\"\ndataset = \"d\"\n[train]\n{expected}\n"), "x").expect("valid").train;
    assert_eq!(train, expected);
    for told in [
        "ds_config optimizer.params.betas.1: 0.95 is taken; the flags, or the defaults of transformers, say 0.999",
        "ds_config scheduler.params.warmup_max_lr: 0.00003 is taken; the flags, or the defaults of transformers, say 0.00005",
        "ds_config scheduler.params.warmup_num_steps: 10 is taken; the flags, or the defaults of transformers, say 0;",
        "ds_config gradient_clipping: 0.5 is taken; the flags, or the defaults of transformers, say 1;",
        "--gradient_checkpointing: with it, or with train.recompute",
    ] {
        tells(&translated.notes, told);
    }
    let agreed = translate(&format!("{CLM} --learning_rate 3e-5 --warmup_steps 10 --max_grad_norm 0.5 --adam_beta2 0.95"), &read);
    assert!(!agreed.expect("a job").notes.iter().any(|note| note.contains("is taken")));
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
    let fixed =
        train(r#"{"fp16": {"enabled": true, "loss_scale": 128, "initial_scale_power": 16, "min_loss_scale": 1}}"#).loss_scaling;
    assert_eq!(fixed, LossScaling { initial: 128.0, minimum: 128.0, maximum: 128.0, ..LossScaling::default() });
    let third = train(
        r#"{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/nvme"}, "offload_optimizer": {"device": "cpu"}},
            "scheduler": {"params": {"warmup_type": "linear", "warmup_min_lr": 1e-6, "warmup_max_lr": 1e-3}, "type": "WarmupLR"},
            "optimizer": {"params": {"lr": 5e-5}}}"#,
    );
    assert_eq!((third.offload, third.schedule), (Offload::Model, Schedule::WarmupLrLinear));
    let is = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} instead of {expected}");
    is(third.warmup_learning_rate, 1e-6);
    is(third.learning_rate, 1e-3); // The optimizer's is written over.
    assert_eq!(third.warmup_steps, 1000.into(), "DeepSpeed's default");
    let short = translate(&format!("{CLM} --max_steps 50"), &|_| Ok(r#"{"scheduler": {"type": "WarmupLR"}}"#.to_owned()));
    assert!(short.expect_err("a problem").what.contains("without warmup_num_steps DeepSpeed takes 1000, more than the run has"));
}

#[test]
fn what_is_not_to_be_had_is_refused_by_name() {
    let config = r#"{"fp16": {"enabled": "maybe"}, "zero_optimization": {"zero_hps_partition_size": 8}, "bufer": 1}"#;
    let found = translate(&format!("{CLM} --fp16_full_eval"), &|_| Ok(config.to_owned())).expect_err("problems").what;
    for problem in [
        "--fp16_full_eval: weights and evaluation stay in float32 here",
        "ds_config fp16.enabled: `maybe` does not exist here",
        "ds_config zero_optimization.zero_hps_partition_size: ftctl does not know this key; did you mean zero_optimization.zero_hpz_partition_size?",
        "ds_config bufer: ftctl does not know this key; take it out to go on without it",
    ] {
        assert!(found.contains(problem), "{problem} is not in\n{found}");
    }
    let sizes = r#"{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}"#;
    let found = translate(CLM, &|_| Ok(sizes.to_owned())).expect_err("a problem").what;
    assert!(found.contains("train_batch_size: 32 is not the micro-batch of 4 times the accumulation of 4"), "{found}");
    let agree = sizes.replace("32", "16");
    assert!(translate(CLM, &|_| Ok(agree.clone())).is_ok());
    let base = "python run_clm.py --train_file a.txt";
    for (added, problem) in [
        ("--lerning_rate 1", "--lerning_rate: ftctl does not know this flag; did you mean --learning_rate?"),
        ("--frobnicate", "--frobnicate: ftctl does not know this flag; take it out to go on without it"),
        ("--learning-rate fast", "--learning-rate: `fast` is not a number"),
        ("--optim sgd", "--optim: `sgd` does not exist here; values: "),
        ("--lr_scheduler_type cosin", "did you mean `cosine`?"),
        ("--seed", "--seed: it needs a value"),
        ("stray", "stray: a word that belongs to no flag"),
        ("--load_best_model_at_end --eval_steps 9", "--load_best_model_at_end: it needs evaluations on the way"),
        ("--lerning_rate=1e-5", "did you mean --learning_rate?"),
        ("--gradient-acumulation-steps 2", "did you mean --gradient-accumulation-steps?"),
        ("--dataset_name wikitext", "--dataset_name: the program reads it in the place of --train_file; give one of them"),
        ("--dataset_config_name x", "--dataset_config_name: it is one of a dataset's"),
        ("--output_dir $OUT", "the command has a `$`"),
        ("--output_dir ~/out", "the command has a `~`"),
        ("; rm", "`;` is the shell's"),
        ("--output_dir 'a", "never closed"),
        ("--deepspeed none.json", "--deepspeed: there is no none.json"),
    ] {
        let found = problems(&format!("{base} {added}"));
        assert!(found.contains(problem), "{added} gave {found}");
    }
    let own = refused("python train.py config/train_gpt2.py");
    assert!(own.what.contains("settings of its own") && own.fix.contains("run_clm.py") && own.fix.contains("nanogpt"), "{own:?}");
    let unknown = refused("python pretrain.py --lr 1");
    assert!(unknown.what.contains("names no program that is known here") && unknown.fix.contains("run_clm.py"), "{unknown:?}");
    let far = refused(&format!("{base} --frobnicate --lerning_rate 1"));
    assert!(far.fix.contains("`ftctl schema`") && !format!("{far:?}").contains("adam_beta1"), "no list of all: {far:?}");
    assert_eq!(problems(&format!("{base} --lerning_rate 1")).lines().count(), 2, "its value is no problem of its own");
    assert!(
        problems(&format!("{base} --parallelism_config p.json")).contains("--parallelism_config: a model is on one device here")
    );
}

const FAIRSEQ: &str = "fairseq-train --task language_modeling data-bin/openwebtext --batch-size 8 --update-freq 8 --max-update 100000 \
    --tokens-per-sample 1024 --sample-break-mode none --optimizer adam --adam-betas '(0.9, 0.95)' --weight-decay 0.1 --clip-norm 1.0 \
    --lr 6e-4 --lr-scheduler cosine --lr-period-updates 99000 --warmup-updates 1000 --warmup-init-lr 1e-07 --min-lr 0 --lr-shrink 0.1 \
    --t-mult 1 --save-interval-updates 2000 --keep-interval-updates 10 --log-interval 10 --num-workers 2 --tensorboard-logdir tb \
    --save-dir out --criterion cross_entropy --share-decoder-input-output-embed --dropout 0.1 --arch transformer_lm_gpt --no-epoch-checkpoints --checkpoint-activations";

#[test]
fn a_run_of_fairseq_without_a_last_update_ends_by_epochs() {
    let by_epochs = FAIRSEQ.replace("--max-update 100000", "--max-update 0 --max-epoch 2").replace("--lr-period-updates 99000", "");
    let train = job(&by_epochs).train;
    assert_eq!((train.steps, train.epochs), (None, Some(2.0)));
    assert_eq!(job(&format!("{FAIRSEQ} --max-epoch 0")).train, job(FAIRSEQ).train);
}

#[test]
fn directories_of_fairseq_are_read_one_an_epoch() {
    let command = FAIRSEQ.replace("data-bin/openwebtext", "data-bin/0:data-bin/1/").replace("--max-update 100000", "--max-epoch 3");
    let command = command
        .replace("--lr-period-updates 99000", "")
        .replace("--save-interval-updates 2000", "")
        .replace("--no-epoch-checkpoints", "");
    let translated = translate(&command, NOTHING).expect("a job");
    tells(&translated.notes, "an epoch here is 2 of fairseq's");
    let job = JobSpec::parse(&translated.text, "job.toml").expect("a job");
    let data = job.data.expect("tokens");
    assert_eq!(data.train, ["data-bin/0/train.bin", "data-bin/1/train.bin"]);
    assert_eq!(data.validation, ["data-bin/0/valid.bin"]);
    let half = Length::Epochs(0.5);
    assert_eq!((job.train.epochs, job.train.eval_every, job.train.checkpoint_every), (Some(1.5), half, half));
}

#[test]
fn fairseq_train_becomes_a_job() {
    let job = job(FAIRSEQ);
    let expected = "weight_decay = 0.1\nweight_decay_on = \"all\"\nsteps = 100000\nmicro_batch = 8\ngradient_accumulation = 8\n\
        log_every = 10\nbetas = [0.9, 0.95]\nschedule = \"cosine\"\nwarmup_steps = 1000\nwarmup_learning_rate = 1e-7\n\
        learning_rate = 6e-4\nclip_norm = 1.0\ncheckpoint_every = 2000\neval_every = 2000\nkeep_checkpoints = 10\nrecompute = \"full\"\nseed = 1\ncompat = \"fairseq\"\n\
        dropout = 0.1\nattention_dropout = 0.1";
    let expected = JobSpec::parse(&format!("name = \"x\"\ndataset = \"d\"\n[train]\n{expected}\n"), "x").expect("valid").train;
    assert_eq!(job.train, expected);
    assert_eq!(job.model.variant, Some(Variant::Fairseq));
    let data = job.data.expect("tokens");
    assert_eq!(
        (&data.train[0], &data.validation[0]),
        (&"data-bin/openwebtext/train.bin".to_owned(), &"data-bin/openwebtext/valid.bin".to_owned())
    );
    let found = problems(&format!("{FAIRSEQ} --activation-dropout 0.1 --fp16 --zero-sharding full --hpu --t-mult 2"));
    for problem in [
        "--activation-dropout: nothing is dropped inside the network",
        "--fp16: weights and evaluation stay in float32 here",
        "--zero-sharding: ",
        "--hpu: ",
        "--t-mult: ",
    ] {
        assert!(found.contains(problem), "{problem} is not in\n{found}");
    }
    assert!(problems(&FAIRSEQ.replace("--arch transformer_lm_gpt", "")).contains("--arch: fairseq needs it"));
    assert!(problems(&format!("{FAIRSEQ} --max-epoch 2")).contains("--max-epoch: a run ends by updates or by epochs here"));
    assert!(problems(&FAIRSEQ.replace("99000", "100000")).contains("--lr-period-updates: a cosine has one period here"));
}

#[test]
fn names_of_the_hub_are_those_of_a_job() {
    let run = |flags: &str| format!("run_clm.py {flags}");
    let weights = |flags: &str| job(&run(&format!("--train_file a.txt {flags}")));
    for (flags, named, tokenizer) in [
        ("--model_name_or_path gpt2-medium", "hf:openai-community/gpt2-medium", None),
        ("--model_name_or_path owner/mine", "hf:owner/mine", Some("hf:owner/mine")),
        ("--model_name_or_path owner/mine --model_revision v1", "hf:owner/mine@v1", Some("hf:owner/mine@v1")),
        ("--model_name_or_path gpt2 --tokenizer_name owner/words", "hf:openai-community/gpt2", Some("hf:owner/words")),
        ("--model_name_or_path ./owner/mine", "./owner/mine", Some("./owner/mine")),
        ("--model_name_or_path mine", "mine", Some("mine")),
    ] {
        let job = weights(flags);
        assert_eq!(job.initial_weights.as_deref(), Some(named), "{flags}");
        assert_eq!(job.data.expect("text").tokenizer.directory.as_deref(), tokenizer, "{flags}");
    }
    tells(
        &notes(&run("--train_file a.txt --model_name_or_path owner/mine")),
        "--model_name_or_path: there is no directory owner/mine here, so it is of the hub; for one that will be here write ./owner/mine",
    );
    for flags in [
        "--model_name_or_path bert-base-uncased",
        "--model_name_or_path gpt2 --tokenizer_name gpt2-typo",
        "--model_name_or_path a/b/c",
    ] {
        let name = flags.rsplit(' ').next().unwrap_or_default();
        let told = format!("there is no directory {name} here, and no name of the hub is like it: it is taken for a directory");
        tells(&notes(&run(&format!("--train_file a.txt {flags}"))), &told);
        let here = |_: &str| Ok("{}".to_owned());
        let found = translate(&run(&format!("--train_file a.txt {flags}")), &here).expect("a job").notes;
        assert!(!found.iter().any(|note| note.contains("there is no directory")), "{found:?}");
        assert!(!notes(&run(&format!("--train_file a.txt {}", flags.replace(name, "./x")))).concat().contains("no directory"));
    }
    let here = |file: &str| if file == "owner/mine/config.json" { Ok("{}".to_owned()) } else { Err(file.to_owned()) };
    let text = translate(&run("--train_file a.txt --model_name_or_path owner/mine"), &here).expect("a job").text;
    assert!(text.contains("initial_weights = \"owner/mine\""), "a directory that is here comes first: {text}");
    let config = |file: &str| match file {
        "hf:owner/mine/config.json" => {
            Ok(r#"{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 9}"#.to_owned())
        }
        _ => Err(file.to_owned()),
    };
    let text = translate(&run("--train_file a.txt --config_name owner/mine --tokenizer_name gpt2"), &config).expect("a job").text;
    assert!(text.contains("layers = 2") && text.contains("block_size = 64"), "{text}");

    for (flags, train, validation) in [
        (
            "--dataset_name Salesforce/wikitext --dataset_config_name raw",
            "hf:Salesforce/wikitext/raw/train",
            Some("hf:Salesforce/wikitext/raw/validation"),
        ),
        ("--dataset_name owner/tales", "hf:owner/tales/train", Some("hf:owner/tales/validation")),
        ("--dataset_name openwebtext", "hf:Skylion007/openwebtext/train", None),
    ] {
        let data = job(&run(&format!("--model_name_or_path gpt2 {flags}"))).data.expect("text");
        assert_eq!(
            (data.train, data.validation),
            (vec![train.to_owned()], Vec::from_iter(validation.map(str::to_owned))),
            "{flags}"
        );
    }
    tells(&notes(&run("--dataset_name owner/tales")), "--dataset_name: `ftctl plan` says whether it has text for validation");
    assert!(!notes(&run("--dataset_name wikitext --dataset_config_name x")).iter().any(|note| note.starts_with("--dataset_name")));
    for (flags, problem) in [
        ("--dataset_name json", "--dataset_name: `json/train` names no text of the hub"),
        ("--dataset_name ./mine", "--dataset_name: ./mine is a directory; name its files in --train_file"),
        ("--dataset_name a/../b", "--dataset_name: `"),
        ("--train_file a.txt --model_name_or_path a/b --model_revision ../x", "--model_name_or_path: `../x` is no revision"),
        ("--train_file a.txt --config_name a/b", "--config_name: there is no hf:a/b/config.json"),
    ] {
        let found = problems(&run(flags));
        assert!(found.contains(problem), "{flags} gave {found}");
    }
}

#[test]
fn a_switch_may_have_a_value() {
    let precision = |flag: &str| job(&format!("run_clm.py --train_file a.txt {flag}")).train.precision;
    assert_eq!(precision("--bf16"), precision("--bf16 True"));
    assert_eq!(precision("--bf16=false"), precision(""));
    assert_ne!(precision("--bf16"), precision(""));
    assert_eq!(job(&format!("accelerate launch --mixed_precision bf16 {SMALL} --fp16")).train.precision, precision("--fp16"));
    for flags in ["--bf16 --fp16", "--fp16 --bf16"] {
        let refused = translate(&format!("{SMALL} {flags}"), NOTHING).unwrap_err();
        assert!(refused.what.contains("the program takes one of fp16 and bf16"), "{}", refused.what);
    }
    assert!(
        job(&format!("{SMALL} --eval_strategy steps --load_best_model_at_end --metric_for_best_model eval_loss")).train.keep_best
    );
}

#[test]
fn flags_mean_the_same_in_any_order() {
    let train = |flags: &str| job(&format!("{SMALL} {flags}")).train;
    for (flags, turned) in [
        ("--max_steps 100 --num_train_epochs 3", "--num_train_epochs 3 --max_steps 100"),
        ("--eval_strategy no --eval_steps 100", "--eval_steps 100 --eval_strategy no"),
        ("--eval_strategy steps --eval_steps 100", "--eval_steps 100 --eval_strategy steps"),
    ] {
        assert_eq!(train(flags), train(turned));
    }
    assert_eq!((train("--max_steps 100 --num_train_epochs 3").steps, train("--max_steps -1").steps), (Some(100), None));
    assert_eq!(train("--max_steps 100 --max_steps -1").steps, None, "the last one counts");
}

#[test]
fn evaluations_on_the_way_are_those_of_the_program() {
    let every = |flags: &str| job(&format!("{SMALL} {flags}")).train.eval_every.steps();
    assert_eq!(every("--eval_strategy steps"), 500, "as often as it logs");
    assert_eq!(every("--evaluate_during_training --logging_steps 7"), 7);
    assert_eq!(every("--eval_strategy steps --logging_steps 7 --eval_steps 0"), 7);
    assert_eq!(
        (every("--eval_strategy steps --eval_steps 9"), every("--eval_strategy no --eval_steps 9"), every("--eval_steps 9")),
        (9, 0, 0)
    );
    tells(
        &notes(&format!("{SMALL} --eval_steps 9")),
        "--eval_steps: without --eval_strategy steps the program evaluates at its end",
    );
}

#[test]
fn sizes_comments_and_tf32_are_known() {
    assert_eq!(job(&format!("{SMALL}-medium --config_name gpt2-medium # the larger one's type")).train, job(SMALL).train);
    assert!(problems(&format!("{SMALL}-medium")).contains("--model_type: \"gpt2-medium\" is not a size without"));
    let tf32 = |flag: &str| job(&format!("{SMALL} --tf32 {flag}")).train.tf32;
    assert!(tf32("True") && !tf32("false"));
}

#[test]
fn every_flag_has_one_meaning() {
    for tables in PROGRAMS.map(|program| program.flags).into_iter().chain([launchers::FLAGS]) {
        let mut names: Vec<&str> = tables.iter().copied().flatten().flat_map(|flag| flag.names).copied().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(names.iter().all(|name| !name.contains('-')));
    }
}

const SMALL: &str = "python3 -u run_clm.py --train_file a.txt --model_type gpt2";

#[test]
fn what_the_program_drops_is_dropped() {
    let rates = |command: &str, read: &dyn Fn(&str) -> Result<String, String>| {
        let text = translate(command, read).unwrap_or_else(|refused| panic!("{}", refused.what)).text;
        let train = JobSpec::parse(&text, "job.toml").expect("valid").train;
        [train.dropout, train.attention_dropout].map(|rate| (rate * 100.0).round() as u32)
    };
    let started = format!("{SMALL} --model_name_or_path mine");
    assert_eq!(rates(&started, NOTHING), [10, 10]);
    tells(&notes(&started), "dropout: the program drops what the model's config.json says");
    let config = |file: &str| match file {
        "mine/config.json" => Ok(r#"{"embd_pdrop": 0.2, "resid_pdrop": 0.2, "attn_pdrop": 0.0}"#.to_owned()),
        _ => Err(file.to_owned()),
    };
    assert_eq!(rates(&started, &config), [20, 0]);
    for named in ["--model_name_or_path mine", "--config_name mine", "--config_name gpt2"] {
        let found = problems(&format!("{SMALL} {named} --config_overrides n_layer=2"));
        assert!(found.contains("--config_overrides: the program refuses it beside --model_name_or_path"), "{named} gave {found}");
    }

    let none = format!("{SMALL} --config_overrides n_layer=2,n_embd=64,n_head=2,embd_pdrop=0,resid_pdrop=0,attn_pdrop=0");
    assert_eq!(rates(&none, NOTHING), [0, 0]);
    assert_eq!(job(&none).model.layers.zip(job(&none).model.width), Some((2, 64)));
    assert!(!notes(&none).iter().any(|note| note.starts_with("dropout")));
    for (overrides, problem) in [
        ("resid_pdrop=0.2", "embd_pdrop 0.1 and resid_pdrop 0.2: one rate"),
        ("n_layers=2", "--config_overrides: `n_layers` is not known here; did you mean `n_layer`?"),
        ("n_layer", "`n_layer` is not NAME=VALUE"),
    ] {
        let found = problems(&format!("{SMALL} --config_overrides {overrides}"));
        assert!(found.contains(problem), "{overrides} gave {found}");
    }
}

#[test]
fn templates_drop_what_their_recipes_drop() {
    let template = |text: &str| JobSpec::parse(text, "template").unwrap_or_else(|error| panic!("{error}")).train;
    let rate = |dropout: f64| (dropout * 100.0).round() as u32;
    let recipe = job(LANGUAGE_MODELING).train;
    for text in
        [include_str!("../../../templates/jobs/gpt2-wikitext.toml"), include_str!("../../../templates/jobs/gpt2-medium-fp32.toml")]
    {
        let ours = template(text);
        assert_eq!([ours.dropout, ours.attention_dropout].map(rate), [recipe.dropout, recipe.attention_dropout].map(rate));
    }
    let (ours, fairseq) = (template(include_str!("../../../templates/jobs/gpt2-small-openwebtext.toml")), job(FAIRSEQ).train);
    assert_eq!(
        (rate(ours.dropout), rate(ours.attention_dropout), ours.eval_every),
        (rate(fairseq.dropout), rate(fairseq.attention_dropout), fairseq.eval_every)
    );
}

/// One process has the sequences of all of theirs: four with one and sixteen accumulated, eight with four and eight.
#[test]
fn templates_have_the_files_and_the_steps_of_their_recipes() {
    for (text, sequences) in [
        (include_str!("../../../templates/jobs/gpt2-wikitext.toml"), 4 * 16),
        (include_str!("../../../templates/jobs/gpt2-wikitext-azureml.toml"), 4 * 16),
        (include_str!("../../../templates/jobs/gpt2-medium-fp32.toml"), 8 * 4 * 8),
        (include_str!("../../../templates/jobs/gpt2-medium-azureml.toml"), 2 * 8 * 4 * 4),
    ] {
        let spec = JobSpec::parse(text, "template").unwrap_or_else(|error| panic!("{error}"));
        let processes = spec.compute.nodes.unwrap_or(1) * spec.compute.processes_per_node.unwrap_or(1);
        assert_eq!(processes * spec.train.micro_batch.sequences() * spec.train.gradient_accumulation, sequences);
        let data = spec.data.expect("text");
        assert_eq!(
            (data.train, data.validation),
            (vec!["wikitext-103/wiki.train.tokens".to_owned()], vec!["wikitext-103/wiki.test.tokens".to_owned()])
        );
    }
}

#[test]
fn the_loss_is_scaled_as_the_program_scales_it() {
    let torch = LossScaling { growth_interval: 2000, hysteresis: 1, ..LossScaling::default() };
    assert_eq!(job(&format!("{SMALL} --fp16")).train.loss_scaling, torch);
    tells(&notes(&format!("{SMALL} --fp16")), "train.loss_scaling: as in the program");
    assert_eq!(job(&format!("accelerate launch --mixed_precision fp16 {SMALL}")).train.loss_scaling, torch);
    let apex = LANGUAGE_MODELING.replace("--ort_trainer", "--fp16 --fp16_opt_level O1");
    assert_eq!(job(&apex).train.loss_scaling, torch);
    let onnx = LossScaling { initial: 1_048_576.0, ..torch };
    assert_eq!(job(&format!("{LANGUAGE_MODELING} --fp16")).train.loss_scaling, onnx);
    assert_eq!(job(LANGUAGE_MODELING).train.loss_scaling, LossScaling::default(), "nothing is scaled in fp32");
    assert!(problems(&apex.replace("O1", "O2")).contains("--fp16_opt_level: `O2` does not exist here"));
}

#[test]
fn how_many_checkpoints_are_kept_is_told() {
    tells(&notes(SMALL), "train.keep_checkpoints: without --save_total_limit the program keeps every checkpoint");
    tells(&notes(&format!("{SMALL} --save_total_limit 0")), "without --save_total_limit");
    let three = format!("{SMALL} --save_total_limit 3");
    assert_eq!(job(&three).train.keep_checkpoints, 3);
    assert!(!notes(&three).iter().any(|note| note.starts_with("train.keep_checkpoints")));
    tells(&notes(&FAIRSEQ.replace("--keep-interval-updates 10", "")), "without --keep-interval-updates");
}

#[test]
fn ways_that_no_flag_names_are_told() {
    for (command, told) in [
        (SMALL, "documents: the program puts nothing between rows, and drops what is left of every 1,000"),
        (SMALL, "accumulation: an epoch may end with an incomplete step"),
        (SMALL, "evaluation: the program leaves out the last block"),
        (LANGUAGE_MODELING, "evaluation: the program's perplexity is that of the mean of its batches' means"),
        (LANGUAGE_MODELING, "train.compat: keeps that layer norms decay"),
        (LANGUAGE_MODELING, "blocks: the first token of a block"),
        (FAIRSEQ, "documents: the </s> that fairseq puts after each line"),
        (FAIRSEQ, "blocks: fairseq also trains on the last block"),
        (FAIRSEQ, "accumulation: the last update of an epoch"),
    ] {
        tells(&notes(command), told);
    }
    assert!(!notes(LANGUAGE_MODELING).iter().any(|note| note.contains("1,000")), "it reads a file as one text");
}

/// The command line of Habana's example.
#[test]
fn fairseqs_script_and_its_early_end_are_known() {
    let script = FAIRSEQ.replace("fairseq-train", "python train.py");
    assert_eq!(job(&script).train, job(FAIRSEQ).train);
    let early = job(&format!("{FAIRSEQ} --patience 3 --keep-best-checkpoints 1 --best-checkpoint-metric ppl")).train;
    assert_eq!((early.early_stopping_patience, early.keep_best, early.eval_every), (Some(3), true, 2000.into()));
    let never = job(&format!("{FAIRSEQ} --patience -1 --keep-best-checkpoints -1")).train;
    assert_eq!((never.early_stopping_patience, never.keep_best), (None, false));
    assert_eq!(job(&format!("{FAIRSEQ} --validate-interval-updates 500")).train.eval_every, 500.into());
    assert!(
        problems(&format!("{FAIRSEQ} --keep-best-checkpoints 3"))
            .contains("--keep-best-checkpoints: the weights of one evaluation")
    );
    let by_epochs = job(&FAIRSEQ.replace("--save-interval-updates 2000", "--patience 3")).train;
    assert_eq!([by_epochs.eval_every, by_epochs.checkpoint_every], [Length::Epochs(1.0); 2], "fairseq validates and saves then");
    let never = problems(&format!("{FAIRSEQ} --disable-validation --patience 3"));
    assert!(never.contains("--patience: it needs validations on the way"), "{never}");
}

#[test]
fn launchers_of_one_process_are_known() {
    let plain = job(SMALL).train;
    for launcher in [
        "mpirun -n 1 -hostfile hosts -bind-to none -map-by slot -x NCCL_DEBUG=INFO -x PATH -mca pml ob1 -mca btl ^openib --allow-run-as-root",
        "mpirun -np 1 --bind-to core --map-by socket:PE=6 --rank-by core --report-bindings",
        "deepspeed --include localhost:0 --master_port 29501 --launcher pdsh --no_local_rank --module",
        "torchrun --standalone --nnodes 1 --nproc-per-node=1 --rdzv_backend c10d --max_restarts 0",
        "NCCL_DEBUG=INFO accelerate launch --num_processes 1 --num_machines 1 --mixed_precision no",
    ] {
        assert_eq!(job(&format!("{launcher} {SMALL}")).train, plain, "{launcher}");
    }
    assert!(
        problems(&format!("mpirun -hostfil hosts {SMALL}"))
            .contains("-hostfil: ftctl does not know this flag; did you mean --hostfile?")
    );
}

/// A file that names two machines of eight GPUs.
const HOSTS: &str = "# ours\nworker-0 slots=8\n\nworker-1 slots=8\n";

#[test]
fn launchers_say_how_many_machines_and_processes_there_are() {
    for (launcher, nodes, processes) in [
        ("mpirun -n 8", None, Some(8)),
        ("mpirun -np 16 -hostfile hosts", Some(2), Some(8)),
        ("mpirun -np 4 -hostfile hosts", None, Some(4)),
        ("mpirun -np 8 -H one:4,two:4", Some(2), Some(4)),
        ("mpirun -n 8 -npernode 4", Some(2), Some(4)),
        ("deepspeed --num_gpus 2", None, Some(2)),
        ("CUDA_VISIBLE_DEVICES=0,1 NCCL_DEBUG=INFO deepspeed", None, Some(2)),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 deepspeed --num_gpus 2", None, Some(2)),
        ("env CUDA_VISIBLE_DEVICES=2,3 python", None, Some(2)),
        ("CUDA_VISIBLE_DEVICES= python", None, None),
        ("CUDA_VISIBLE_DEVICES=0,1,-1,2 accelerate launch", None, Some(2)),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun", None, None),
        ("CUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.launch", None, None),
        ("deepspeed --num_nodes=2 --num_gpus=8", Some(2), Some(8)),
        ("deepspeed --hostfile hosts", Some(2), Some(8)),
        ("deepspeed --hostfile hosts --num_nodes 1", None, Some(8)),
        ("deepspeed --hostfile=hosts --num_gpus 4", Some(2), Some(4)),
        ("deepspeed --include localhost:0,1", None, Some(2)),
        ("deepspeed --include=worker-0:0,2@worker-1:1,3", Some(2), Some(2)),
        ("torchrun --nproc-per-node=8 --nnodes 2 --node_rank 0 --master_addr worker-0", Some(2), Some(8)),
        ("torchrun --standalone --nproc_per_node 4", None, Some(4)),
        ("torchrun --nnodes 2:2 --nproc_per_node 1", Some(2), Some(1)),
        ("python -m torch.distributed.launch --nproc_per_node 4", None, Some(4)),
        ("accelerate launch --multi_gpu --num_processes 16 --num_machines 2 --machine_rank 0", Some(2), Some(8)),
        // Other names of theirs.
        ("accelerate-launch --num_processes 2", None, Some(2)),
        ("ds --num_gpus 2", None, Some(2)),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate-launch", None, Some(2)),
        ("python -m accelerate.commands.launch --num_processes 2", None, Some(2)),
        (r"'C:\Program Files\accelerate.exe' launch --num_processes 2", None, Some(2)),
        ("orterun -np 4 python", None, Some(4)),
        ("mpiexec.hydra -n 4 python", None, Some(4)),
        ("/usr/bin/mpirun.openmpi -np 4 python", None, Some(4)),
        ("CUDA_VISIBLE_DEVICES=0,1 mpirun.mpich python", None, None),
        // Cells of a notebook.
        ("!torchrun --nproc_per_node=8", None, Some(8)),
        ("! accelerate launch --num_processes 2", None, Some(2)),
        ("%%bash\ntorchrun --nproc_per_node 2", None, Some(2)),
        ("%%time\n!CUDA_VISIBLE_DEVICES=0,1 python", None, Some(2)),
    ] {
        let read = |file: &str| if file == "hosts" { Ok(HOSTS.to_owned()) } else { Err(format!("{file}: it is not there")) };
        let translated =
            translate(&format!("{launcher} {SMALL}"), &read).unwrap_or_else(|refused| panic!("{launcher}: {}", refused.what));
        let compute = JobSpec::parse(&translated.text, "job.toml").unwrap_or_else(|error| panic!("{launcher}: {error}")).compute;
        assert_eq!((compute.nodes, compute.processes_per_node), (nodes, processes), "{launcher}");
    }
}

/// Each has flags that look like those of a launcher.
#[test]
fn what_a_launcher_is_started_by_says_nothing_about_processes() {
    let plain = job(SMALL).compute.processes_per_node;
    for wrapper in [
        "nice -n 4 python",
        "nohup nice -n 19 python3 -u",
        "taskset -c 4 python",
        "numactl -N 0 -m 0 /usr/bin/python3.11",
        "conda run -n deepspeed --no-capture-output python",
        "uv run --with transformers --python 3.12 python -B",
        "HF_HOME=/hub poetry run python",
        "docker run --rm -it --gpus all -e HF_HOME=/hub -v /home/me:/work python:3.12 python",
        "timeout -k 5 3h python",
    ] {
        let command = format!("{wrapper} {SMALL}");
        assert_eq!(job(&command).compute.processes_per_node, plain, "{wrapper}");
        tells(&notes(&command), ": left out, with its flags: a job has a machine of its own");
    }
    for (wrapper, launcher) in [
        ("nice -n 4", "torchrun --nproc_per_node 2"),
        ("sudo -E", "torchrun --nproc_per_node 2"),
        ("sudo -Hu me", "torchrun --nproc_per_node 2"),
        ("env -i", "accelerate launch --num_processes 2"),
        ("env -u deepspeed -S", "torchrun --nproc_per_node 2"),
        ("conda run --no-capture-output", "deepspeed --num_gpus 2"),
        ("conda run -n deepspeed --live-stream", "deepspeed --num_gpus 2"),
        ("uv run --no-sync", "torchrun --nproc_per_node=2"),
        ("uv run --with deepspeed --frozen", "deepspeed --num_gpus=2"),
        ("uvx --from torch", "torchrun --nproc_per_node=2"),
        ("numactl --cpunodebind=0 -l", "torchrun --nproc_per_node 2"),
        ("time -p", "torchrun --nproc_per_node 2"),
        ("nohup stdbuf -oL", "torchrun --nproc_per_node 2"),
        ("taskset -c 0-3", "torchrun --nproc_per_node 2"),
        ("docker run --gpus all --rm deepspeed/deepspeed", "torchrun --nproc_per_node 2"),
        ("apptainer exec --bind /data --nv torch.sif", "torchrun --nproc_per_node 2"),
        ("sudo -E nice -n 19 env -i A=b conda run -n 4", "torchrun --nproc_per_node 2"),
        ("ours --", "torchrun --nproc_per_node 2"),
        ("ours --verbose", "python -m torch.distributed.run --nproc_per_node 2"),
        ("mpirun -np 2", "nice -n 5 numactl -N 0 python"),
        ("mpirun -np 2 --oversubscribe", "nice -n 5 python"),
    ] {
        let command = format!("{wrapper} {launcher} {SMALL}");
        assert_eq!(job(&command).compute.processes_per_node, Some(2), "{command}");
    }
    let precision = job(&format!("sudo -E accelerate-launch --mixed_precision bf16 {SMALL}")).train.precision;
    assert_eq!(precision, Precision::Bf16);
    let image = notes(&format!("docker run --rm deepspeed/deepspeed python {SMALL}"));
    assert!(!image.iter().any(|note| note.contains("every GPU")), "{image:?}");
    for (command, problem) in [
        (
            "ours --fast torchrun --nproc_per_node 8",
            "--fast torchrun: ftctl does not know ours, and cannot tell whether torchrun is",
        ),
        ("ours -n 8 python", "-n: ftctl does not know ours, which may start as many processes as this says; leave ours out"),
        ("composer --nproc=8 python", "--nproc=8: ftctl does not know composer"),
        ("env -S 'torchrun --nproc_per_node 8'", "`torchrun --nproc_per_node 8`: it is one word, in quotation marks"),
    ] {
        let found = problems(&format!("{command} {SMALL}"));
        assert!(found.contains(problem), "{command} gave {found}");
    }
    assert_eq!(job(&format!("nohup env CUDA_VISIBLE_DEVICES=0,1 python {SMALL}")).compute.processes_per_node, Some(2));
    for cluster in [
        "srun -N 2 -n 8 python",
        "srun --gres=gpu:4 --ntasks-per-node=4 torchrun --nproc_per_node 4",
        "jsrun -n 8 -c 4 python",
        "sudo -E ibrun python",
    ] {
        let found = problems(&format!("{cluster} {SMALL}"));
        assert!(found.contains("run: a job has machines of its own; leave it out: torchrun --nnodes 2"), "{cluster}: {found}");
    }
}

/// transformers has a second seed for the order of the data.
#[test]
fn a_second_seed_is_taken_when_it_is_the_same() {
    for flags in ["--data_seed 42", "--data_seed 7 --seed 7", "--seed 7 --data_seed=7"] {
        assert_eq!(
            job(&format!("{SMALL} {flags}")).train.seed,
            job(&format!("{SMALL} {flags}").replace("data_seed", "seed")).train.seed
        );
    }
    let refused = translate(&format!("{SMALL} --data_seed 7"), NOTHING).unwrap_err();
    assert!(
        refused.what.contains("--data_seed: 7 is not the seed 42: one seed (--seed) decides weights and order here"),
        "{}",
        refused.what
    );
}

#[test]
fn variables_before_a_command_are_told() {
    let translated =
        translate(&format!("CUDA_VISIBLE_DEVICES=0,1 WANDB_MODE=offline A_1=b python {SMALL}"), NOTHING).expect("a job");
    tells(&translated.notes, "CUDA_VISIBLE_DEVICES: a process for each of these GPUs");
    tells(&translated.notes, "WANDB_MODE, A_1: left out");
    let of_flag = notes(&format!("torchrun --rdzv_conf timeout=900 {SMALL}"));
    assert!(!of_flag.iter().any(|note| note.contains("left out; set compute.environment")), "{of_flag:?}");
    for (devices, count) in
        [("0", Some(1)), ("GPU-8932f937-d72c,MIG-1", Some(2)), ("", None), ("-1", None), ("none", None), ("-1,0", None)]
    {
        let command = format!("CUDA_VISIBLE_DEVICES={devices} python {SMALL}");
        let found = job(&command);
        let device = if count.is_none() { DeviceChoice::Cpu } else { DeviceChoice::Auto };
        assert_eq!((found.compute.processes_per_node, found.train.device), (count, device), "{command}");
        assert_eq!(notes(&command).iter().any(|note| note.contains("it shows no GPU")), count.is_none(), "{command}");
    }
    let alone = SMALL.replace("run_clm.py", "run_clm_no_trainer.py");
    assert_eq!(job(&format!("CUDA_VISIBLE_DEVICES=0,1 {alone}")).compute.processes_per_node, None);
}

#[test]
fn what_signs_in_somewhere_is_not_written_down() {
    let python = SMALL;
    for command in [
        format!("{python} --token hf_SECRET --seed 1"),
        format!("{python} --push_to_hub_token=hf_SECRET"),
        format!("{python} --hub_token \\\n hf_SECRET"),
        format!("{python} --token 'hf SECRET'"),
        format!("HF_TOKEN=hf_SECRET WANDB_API_KEY='a SECRET' {python}"),
    ] {
        let Translated { text, notes } = translate(&command, NOTHING).expect("a job");
        assert!(!text.contains("SECRET") && !notes.concat().contains("SECRET"), "{command}: {text}");
        assert!(text.contains('…') && text.contains("run_clm.py"), "{text}");
    }
    let shown = words::without_secrets("x --tokenizer_name gpt2 --token --seed 1");
    assert_eq!(shown, "x --tokenizer_name gpt2 --token --seed 1");
}

#[test]
fn number_formats_that_contradict_each_other_are_refused() {
    let refused = |flags: &str, config: &str| {
        let command = format!("{CLM} {flags}");
        translate(&command, &|_| Ok(config.to_owned())).map_or_else(|refused| refused.what, |_| "a job".to_owned())
    };
    let [fp16, bf16, none] =
        [r#"{"fp16": {"enabled": true}}"#, r#"{"bf16": {"enabled": true}}"#, r#"{"fp16": {"enabled": false}}"#];
    for (flags, config) in [("--fp16", bf16), ("--bf16", fp16), ("--fp16", none)] {
        let problem = format!("ds_config fp16.enabled, bf16.enabled: the flags say {flags}; make both say the same");
        assert!(refused(flags, config).contains(&problem), "{flags} {config}");
    }
    let both = r#"{"fp16": {"enabled": true}, "bf16": {"enabled": true}}"#;
    assert!(refused("", both).contains("DeepSpeed takes one of them"));
    for (flags, config) in [("--fp16", fp16), ("--bf16", bf16), ("", none), ("--bf16", none)] {
        assert_eq!(refused(flags, config), "a job", "{flags} {config}");
    }
    let alone = translate(CLM, &|_| Ok(fp16.to_owned())).expect("a job").notes;
    tells(&alone, "ds_config fp16.enabled: no --fp16 stands beside it: it is taken; newer versions of transformers refuse that");
}

#[test]
fn machines_that_a_job_cannot_have_are_refused() {
    for (launcher, problem) in [
        ("torchrun --nnodes 1:4", "--nnodes: a job has as many nodes as it begins with; give 1 or 4"),
        ("torchrun --nproc_per_node gpu", "--nproc_per_node: give the number of processes that `gpu` stands for"),
        ("torchrun --nproc_per_node 0", "--nproc_per_node: `0` is not a number from 1 to 1000"),
        ("accelerate launch --num_processes 7 --num_machines 2", "7 processes cannot be shared evenly among 2 nodes"),
        ("mpirun -H one:8,two:4", "its machines have different numbers of processes"),
        ("deepspeed --include worker-0@worker-1:0", "its machines have different numbers of processes"),
        ("deepspeed --exclude worker-0:0", "--exclude: name what is used, with --include"),
        ("accelerate launch --config_file fsdp.yaml", "--config_file: it can change processes, number format, batch and clipping"),
        ("deepspeed --hostfile away", "--hostfile: there is no away"),
    ] {
        let found = problems(&format!("{launcher} {SMALL}"));
        assert!(found.contains(problem), "{launcher} gave {found}");
    }
    let all = &translate(&format!("deepspeed {SMALL}"), &|_| Err(String::new())).expect("a job").notes;
    tells(all, "deepspeed: it uses every GPU that it finds");
}

#[test]
fn shards_are_for_several_processes() {
    let zero = |command: &str, config: &str| {
        let translated = translate(command, &|_| Ok(config.to_owned())).unwrap_or_else(|refused| panic!("{}", refused.what));
        (JobSpec::parse(&translated.text, "job.toml").expect("valid").train.zero, translated.notes)
    };
    let of = |processes: u32, stage: &str| {
        let command = format!("deepspeed --num_gpus {processes} {SMALL} --deepspeed ds.json");
        zero(&command, &format!("{{\"zero_optimization\": {stage}}}"))
    };
    for (stage, expected) in [("true", 1), ("false", 0), (r#"{"stage": 0}"#, 0), (r#"{"stage": 1}"#, 1), (r#"{"stage": 2}"#, 2)] {
        assert_eq!((of(2, stage).0, of(1, stage).0), (expected, 0), "{stage}");
    }
    let whole = of(2, r#"{"stage": 3}"#);
    assert_eq!(whole.0, 2);
    tells(&whole.1, "zero_optimization.stage: every process has whole weights here");
    tells(&of(1, r#"{"stage": 2}"#).1, "train.zero: there is one process, which has all shards");
    // It takes all GPUs, and how many there are the plan knows.
    let on_all_gpus = zero(&format!("deepspeed {SMALL} --deepspeed ds.json"), r#"{"zero_optimization": {"stage": 2}}"#);
    assert_eq!(on_all_gpus.0, 2);
    tells(&on_all_gpus.1, "train.zero: the shards are those of as many processes as the plan's machine has GPUs");
    for (flags, config, parts) in [
        ("", r#"{"train_batch_size": 16}"#, (1, 16, 1)),
        ("--per_device_train_batch_size 2", r#"{"train_batch_size": 16, "gradient_accumulation_steps": 1}"#, (8, 2, 1)),
        ("--per_device_train_batch_size 2 --gradient_accumulation_steps 4", r#"{"train_batch_size": 16}"#, (2, 2, 4)),
    ] {
        let command = format!("deepspeed {SMALL} {flags} --deepspeed ds.json");
        let translated = translate(&command, &|_| Ok(config.to_owned())).expect("a job");
        let job = JobSpec::parse(&translated.text, "job.toml").expect("a job");
        let found = (job.compute.processes_per_node, job.train.micro_batch.sequences(), job.train.gradient_accumulation);
        assert_eq!(found, (Some(parts.0), parts.1, parts.2), "{config}");
        assert!(translated.notes.iter().any(|note| note.contains("so that a step has 16 sequences")), "{:?}", translated.notes);
    }
    assert_eq!(job(&format!("deepspeed {SMALL}")).compute.processes_per_node, None);
    for (flag, expected) in [
        ("--fsdp 'full_shard auto_wrap offload'", 2),
        ("--fsdp shard_grad_op", 2),
        ("--fsdp no_shard", 0),
        ("--sharded_ddp 'zero_dp_2 auto_wrap'", 2),
        ("--sharded_ddp simple", 2),
    ] {
        assert_eq!(zero(&format!("torchrun --nproc_per_node 4 {SMALL} {flag}"), "").0, expected, "{flag}");
        assert_eq!(zero(&format!("{SMALL} {flag}"), "").0, 0, "{flag} of one process");
    }
    tells(
        &zero(&format!("torchrun --nproc_per_node 4 {SMALL} --fsdp full_shard"), "").1,
        "train.zero: every process has whole weights",
    );
    assert_eq!(zero(&format!("{SMALL} --deepspeed ds.json"), r#"{"zero_optimization": {"stage": 2}}"#).0, 0);
    assert_eq!(zero(&format!("{FAIRSEQ} --distributed-world-size 8 --zero-sharding os"), "").0, 1);
    assert_eq!(job(&format!("{FAIRSEQ} --distributed-world-size 8")).compute.processes_per_node, Some(8));
}

#[test]
fn what_trains_nothing_has_its_command_of_ftctl() {
    for (command, fix, told) in [
        (
            "python run_generation.py --model_type=gpt2 --model_name_or_path=finetuned --length 200 --p 0.8 --k 40 --seed 7 --temperature 0.7 \
             --repetition_penalty 1.0 --stop_token '<|endoftext|>' --prompt \"it's\" --num_return_sequences 2 --no_cuda",
            r"ftctl generate 'finetuned' --prompt='it'\''s' --prompt='it'\''s' --seed 7 --temperature 0.7 --tokens 200 --top-k 40 --top-p 0.8",
            "draws: the same seed draws other tokens",
        ),
        (
            "run_generation.py --model_type gpt2 --model_name_or_path gpt2",
            "ftctl generate 'hf:openai-community/gpt2' --prompt='TEXT' --seed 42 --temperature 1.0 --tokens 20 --top-k 0 --top-p 0.9",
            "a job file is for training, and run_generation.py does something else",
        ),
        (
            "python -m examples.roberta.multiprocessing_bpe_encoder --encoder-json encoder.json --vocab-bpe vocab.bpe --inputs train.raw \
             --outputs train.bpe --keep-empty --workers 80",
            "ftctl prepare 'train.raw' --out 'train.bpe'",
            "--keep-empty: a txt file is one document",
        ),
        (
            "python fairseq_cli/preprocess.py --only-source --trainpref train.bpe --validpref valid.bpe --testpref test.bpe \
             --destdir data-bin/web --srcdict dict.txt --dataset-impl mmap --workers 80",
            "with TEXT for what the encoder made 'train.bpe' of and VALIDATION for what it made 'valid.bpe' of: \
             ftctl prepare 'TEXT' --out 'data-bin/web' --validation 'VALIDATION'",
            "data.format: with \"fairseq\" a job reads what this command writes",
        ),
    ] {
        let found = refused(command);
        assert_eq!(found.fix, fix);
        assert!(found.what.contains(told), "{told} is not in\n{}", found.what);
    }
    assert_eq!(
        refused("fairseq-preprocess --only-source --trainpref a.bpe").fix,
        refused("preprocess.py --only-source --trainpref a.bpe").fix
    );
    for (command, problem) in [
        ("run_generation.py --repetition_penalty 1.2", "--repetition_penalty: a token that was there is as likely as ever"),
        ("run_generation.py --stop_token END", "--stop_token: a text ends at <|endoftext|> here"),
        ("run_generation.py --length -1", "--length: give the number of tokens to add"),
        ("run_generation.py --num_return_sequences 0", "--num_return_sequences: give 1 to 100"),
        ("run_generation.py --promt a", "--promt: ftctl does not know this flag; did you mean --prompt?"),
        ("fairseq-preprocess --trainpref a --dataset-impl raw", "--dataset-impl: `raw` does not exist here"),
        ("fairseq-preprocess --trainpref a --target-lang de", "--target-lang: translation is not known here"),
    ] {
        let found = problems(command);
        assert!(found.contains("cannot be translated") && found.contains(problem), "{command} gave {found}");
    }
}
