use std::fmt::Write as _;

use super::*;
use crate::job::{azureml::Placement, spec::JobSpec};

const NOTHING: Read<'_> = &|file| Err(format!("there is no {file}"));

fn translated(text: &str) -> Translated {
    translate(text, "job.yml", Path::new(""), NOTHING).unwrap_or_else(|refused| panic!("{}", refused.what))
}

fn job(text: &str) -> JobSpec {
    let translated = translated(text);
    JobSpec::parse(&translated.text, "job.toml").unwrap_or_else(|error| panic!("{error}\n{}", translated.text))
}

fn refused(text: &str) -> Refused {
    translate(text, "job.yml", Path::new(""), NOTHING).expect_err("it is refused")
}

#[track_caller]
fn tells(text: &str, part: &str) {
    let translated = translated(text);
    assert!(translated.notes.iter().any(|note| note.contains(part)), "{part} is not in {:#?}", translated.notes);
    assert!(translated.text.contains(&format!("# {}", translated.notes[0])), "notes stand in the file, too");
}

/// Two nodes of eight on a cluster, with data of a datastore.
const GANG: &str = "\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
display_name: GPT-2 on WikiText (2 nodes)
experiment_name: gpt2_finetune
description: fine-tune the small model
tags: {team: language, stage: [trial, two]}
code: ./src
command: >-
  python run_clm.py
  --model_name_or_path ${{inputs.weights}}
  --train_file ${{ inputs.corpus }}/wiki.train.txt --validation_file '${{inputs.held_out}}'
  --per_device_train_batch_size ${{inputs.batch}} --gradient_accumulation_steps 4 --learning_rate ${{inputs.rate}}
  --num_train_epochs 5 --output_dir ${{outputs.model}}
inputs:
  corpus: {type: uri_folder, path: azureml://datastores/texts/paths/wikitext/, mode: ro_mount}
  held_out:
    type: uri_file
    path: azureml://datastores/texts/paths/wikitext/wiki.test.txt
  weights: {type: custom_model, path: ./my weights}
  batch: 2
  rate: 5e-5
  unused: true
outputs:
  model: {type: uri_folder, mode: rw_mount}
environment: {image: mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04, conda_file: conda.yml}
environment_variables: {NCCL_DEBUG: WARN, LD_PRELOAD: x.so}
compute: azureml:v100-cluster
resources: {instance_count: 2, shm_size: 8g}
distribution: {type: pytorch, process_count_per_instance: 8}
limits: {timeout: 14400}
identity: {type: managed}
services:
  board: {type: tensor_board, log_dir: logs}
queue_settings: {priority: high}
";

#[test]
fn a_gang_on_a_cluster_becomes_a_job_of_as_many_processes() {
    let job = job(GANG);
    assert_eq!((job.name.as_str(), job.compute.backend.as_deref()), ("gpt-2-on-wikitext-2-nodes", Some(Backend::Azureml.name())));
    let azureml = &job.compute.azureml;
    assert_eq!(azureml.cluster.as_ref().map(ToString::to_string).as_deref(), Some("v100-cluster"));
    assert_eq!(azureml.identity.as_ref().map(ToString::to_string).as_deref(), Some("managed"));
    assert_eq!((&azureml.compute, &azureml.size, azureml.spot), (&None, &None, None));
    let data = job.data.expect("text");
    assert_eq!((data.train, data.validation), (vec!["corpus/wiki.train.txt".to_owned()], vec!["wiki.test.txt".to_owned()]));
    assert_eq!(job.initial_weights.as_deref(), Some("my weights"), "one word, whatever is in it");
    assert_eq!((job.train.micro_batch.sequences(), job.train.gradient_accumulation), (2, 4));
    assert_eq!((job.compute.nodes, job.compute.processes_per_node), (Some(2), Some(8)));
    assert!((job.train.learning_rate - 5e-5).abs() < 1e-12);
    assert_eq!(job.limits.ttl.map(|ttl| ttl.to_string()).as_deref(), Some("4h"));
    assert_eq!(job.compute.environment.into_iter().collect::<Vec<_>>(), [("NCCL_DEBUG".to_owned(), "WARN".to_owned())]);
}

#[test]
fn whatever_is_left_out_is_told_with_its_line_and_the_reason() {
    for part in [
        "line 3, display_name: the job's name is `gpt-2-on-wikitext-2-nodes`",
        "line 4, experiment_name: the job's name is \"gpt-2-on-wikitext-2-nodes\" already",
        "line 5, description: ",
        "line 6, tags: ",
        "line 7, code: the trainer brings its own code",
        "line 15, inputs.corpus: azureml://datastores/texts/paths/wikitext/ is not fetched",
        "line 15, inputs.corpus: the mode is always the same",
        "line 16, inputs.held_out: azureml://datastores/texts/paths/wikitext/wiki.test.txt is not fetched",
        "put it beside the job file as wiki.test.txt",
        "inputs.unused: the command does not name it",
        "line 23, outputs: ",
        "line 25, environment: the job runs in an image that has ftctl",
        "line 26, environment_variables.LD_PRELOAD: it is left out: LD_PRELOAD cannot be set by a job",
        "line 26, environment_variables: they are kept with the job",
        "line 27, compute: the cluster is used as it is",
        "line 28, resources.shm_size: ",
        "line 29, distribution.type: ftctl starts the processes",
        "line 30, limits.timeout: limits.ttl is 4h",
        "line 32, services: nothing listens",
        "line 34, queue_settings.priority: ",
        "--output_dir: ",
    ] {
        tells(GANG, part);
    }
}

/// The smallest job that `az ml job create` takes, without a cluster.
const SMALL: &str = "command: python run_clm.py --train_file a.txt --model_name_or_path gpt2\n";

#[test]
fn without_a_cluster_the_service_finds_the_machine() {
    let serverless = |more: &str| job(&format!("{SMALL}{more}")).compute.azureml;
    let plain = serverless("resources: {instance_type: Standard_NC24ads_A100_v4}");
    assert_eq!((plain.compute, plain.size.as_deref()), (Some(Placement::Serverless), Some("Standard_NC24ads_A100_v4")));
    assert_eq!((plain.spot, plain.tier, plain.identity), (Some(false), None, None), "the service's own default");
    tells(SMALL, "queue_settings: without queue_settings.job_tier the service's machines are not taken away");
    tells(SMALL, "resources: without an instance_type");
    tells(SMALL, "limits: without a timeout");
    let spot = serverless("queue_settings: {job_tier: Spot}");
    assert_eq!((spot.spot, spot.tier), (Some(true), None));
    let premium = serverless("queue_settings: {job_tier: premium}\nidentity: {type: user_identity}");
    assert_eq!((premium.spot, premium.tier.map(|tier| format!("{tier:?}")).as_deref()), (Some(false), Some("Premium")));
    assert_eq!(premium.identity.map(|identity| identity.to_string()).as_deref(), Some("user"));
    let id = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/rg/providers/Microsoft.ManagedIdentity/userAssignedIdentities/me-1";
    let assigned = serverless(&format!("identity: {{type: managed_identity, msi_resource_id: {id}}}"));
    assert_eq!(assigned.identity.map(|identity| identity.to_string()).as_deref(), Some(id));
    let managed = format!("{SMALL}identity: {{type: managed}}");
    assert_eq!(job(&managed).compute.azureml.identity, None);
    tells(&managed, "without a cluster there is no identity of one");
    tells(&format!("{SMALL}identity: {{type: managed, client_id: me}}"), "an identity is known by its resource id");
    tells(&format!("{SMALL}identity: {{type: aml_token}}"), "the workspace's token opens no store");
    tells(&format!("{SMALL}compute: azureml:gpu\nqueue_settings: {{job_tier: spot}}"), "a cluster's nodes have the priority");
    let here = job(&format!("{SMALL}compute: local\nresources: {{instance_type: Standard_NC24ads_A100_v4}}")).compute;
    assert_eq!((here.backend.as_deref(), here.azureml.size), (Some(Backend::Local.name()), None));
}

#[test]
fn of_a_script_the_command_that_trains_is_taken() {
    let script = "inputs: {more: --bf16 --seed 7}\ncommand: |\n  # don't\n  pip install -r requirements.txt && nvidia-smi; export OUT=$HOME/x\n  \
        python -m torch.distributed.launch --nproc_per_node 1 \\\n    run_clm.py --train_file \"a; b.txt\" ${{inputs.more}} # that's all\n";
    let found = job(script);
    assert_eq!((found.data.expect("text").train, found.train.seed), (vec!["a; b.txt".to_owned()], 7));
    for part in [
        "command: `pip install -r requirements.txt` is left out: only the trainer runs",
        "command: `nvidia-smi` is left out",
        "command: `export OUT=$HOME/x` is left out",
    ] {
        tells(script, part);
    }
    assert!(!translated(script).text.contains("don't"));
}

#[test]
fn the_files_that_a_command_names_are_found_and_paths_lead_to_its_folder() {
    let read: Read<'_> = &|file| match file {
        "code/ds.json" => Ok(r#"{"train_batch_size": 64}"#.to_owned()),
        _ => Err(format!("there is no {file}")),
    };
    let gang = format!(
        "code: code\ninputs: {{text: {{type: uri_file, path: ./a.txt}}}}\ndistribution: {{type: mpi, process_count_per_instance: 4}}\n\
         command: >-\n  run_clm.py --train_file ${{{{inputs.text}}}} --deepspeed ds.json --per_device_train_batch_size 2 --gradient_accumulation_steps {}\n",
        8
    );
    let translated = translate(&gang, "jobs/job.yml", Path::new("/home/me/jobs"), read).expect("a job");
    let job = JobSpec::parse(&translated.text, "job.toml").expect("valid");
    assert_eq!((job.data.expect("text").train, job.train.gradient_accumulation), (vec!["/home/me/jobs/a.txt".to_owned()], 8));
    let wrong = translate(&gang.replace("steps 8", "steps 9"), "job.yml", Path::new(""), read).expect_err("another batch").what;
    assert!(
        wrong.contains("64 is not the micro-batch of 2 times the accumulation of 9, which DeepSpeed refuses in 4 processes"),
        "{wrong}"
    );
}

#[test]
fn a_path_leads_from_the_folder_of_the_file() {
    for (path, folder, whole, below) in [
        ("./", "", ".", "./a.txt"),
        (".", "", ".", "./a.txt"),
        ("./.", "jobs", "jobs", "jobs/a.txt"),
        ("./", "/home/me/jobs", "/home/me/jobs", "/home/me/jobs/a.txt"),
        ("./././d//e/", "", "d/e", "d/e/a.txt"),
        ("../d", "jobs", "jobs/../d", "jobs/../d/a.txt"),
        ("/d/", "jobs", "/d", "/d/a.txt"),
    ] {
        for (more, expected) in [("", whole), ("/a.txt", below)] {
            let text = format!(
                "inputs: {{d: {{path: {path}}}}}\ncommand: run_clm.py --model_name_or_path gpt2 \
                 --train_file ${{{{inputs.d}}}}{more}\n"
            );
            let found =
                translate(&text, "job.yml", Path::new(folder), NOTHING).unwrap_or_else(|refused| panic!("{}", refused.what)).text;
            let job = JobSpec::parse(&found, "job.toml").unwrap_or_else(|error| panic!("{error}\n{found}"));
            assert_eq!(job.data.expect("text").train, [expected], "{path} in {folder}");
        }
    }
}

#[test]
fn what_cannot_be_translated_is_refused_at_its_line() {
    for (added, problem) in [
        ("$schema: https://azuremlschemas.azureedge.net/latest/pipelineJob.schema.json", "line 2, $schema: only a command job"),
        ("type: pipeline", "line 2, type: `pipeline` does not exist here"),
        ("jobs: {a: {}}", "line 2, jobs: only a command job is translated"),
        ("comput: azureml:gpu", "line 2, comput: ftctl does not know this key; did you mean `compute`?"),
        (
            "resources:\n  instance_typ: x",
            "line 3, resources.instance_typ: ftctl does not know this key; did you mean `instance_type`?",
        ),
        ("resources: 3", "line 2, resources: a table belongs here"),
        ("resources: {instance_count: 0}", "resources.instance_count: `0` is not a number from 1 to 1000"),
        ("resources: {instance_count: 99999999999}", "is not a number from 1 to 1000"),
        ("compute: azureml:../x", "line 2, compute: `../x` is not the name of a cluster"),
        ("limits: {timeout: PT4H}", "limits.timeout: `PT4H` is not a number of seconds"),
        ("limits: {timeout: 99999999999999}", "limits.timeout: "),
        ("distribution: {type: tensorflow, worker_count: 2}", "only processes of PyTorch and of MPI"),
        ("queue_settings: {job_tier: cheap}", "queue_settings.job_tier: `cheap` does not exist here"),
        ("identity: {type: managed, msi_resource_id: me}", "identity: `me` is no resource id"),
        ("identity: {typ: user}", "identity: typ: ftctl does not know this key; did you mean `type`?"),
        ("inputs: {a: {path: x, typ: uri_file}}", "inputs: a.typ: ftctl does not know this key; did you mean `type`?"),
        ("inputs: {a: {type: mltable, path: x}}", "inputs: a.type: `mltable` does not exist here"),
        ("inputs: {a: {type: uri_file}}", "inputs: a.path: it is missing"),
        (
            "inputs: {lr: {type: number, default: 0.001, optional: true}}",
            "inputs: lr: a table with a default is an input of a component; a job gives the value alone: `lr: 0.001`",
        ),
        ("inputs: {a: {path: ''}}", "inputs: a.path: it is empty; `./` is the folder of this file"),
        ("inputs: {../a: 1}", "is not the name of an input"),
        ("inputs: {a: }", "inputs: it has no value"),
    ] {
        let found = refused(&format!("{SMALL}{added}\n")).what;
        assert!(found.starts_with("job.yml cannot be translated:\nline ") && found.contains(problem), "{added} gave {found}");
    }
    let of = |command: &str| refused(&format!("inputs: {{rate: 1, text: {{path: a b}}}}\ncommand: |\n  {command}\n")).what;
    let unread = "inputs: {b: {typ: x}, c: {pat: x}}\ncommand: run_clm.py --train_file ${{inputs.b}} --seed ${{inputs.c}}\n";
    let unread = refused(unread).what;
    assert!(["b.typ: ", "c.pat: "].iter().all(|part| unread.contains(part)) && !unread.contains("have no"), "{unread}");
    for (command, problem) in [
        ("python run_clm.py --lr ${{inputs.rat}}", "line 2, command: `inputs` have no `rat`; did you mean `rate`?"),
        ("python run_clm.py --out ${{outputs.x}}", "command: `outputs` have no `x`"),
        ("python run_clm.py --lr ${{search_space.lr}}", "command: `${{search_space.lr}}` is neither one of inputs nor of outputs"),
        ("python run_clm.py --lr ${{inputs.rate", "a `${{` is never closed"),
        ("python run_clm.py --train_file a.txt --seed $RANK", "command: the command has a `$`"),
        ("python run_clm.py --train_file a.txt | tee log", "`|` is the shell's"),
        ("python train.py --lr 1", "command: the command names no program that is known here; known are run_clm.py"),
        ("for seed in 1 2; do python run_clm.py --train_file a.txt; done", "`for` is the shell's"),
        ("run_clm.py --train_file a.txt && run_clm.py --train_file b.txt", "it starts 2 programs that are known here"),
        ("torchrun --nnodes 1:2 run_clm.py --train_file a.txt", "--nnodes: a job has as many nodes as it begins with"),
        (
            "run_clm.py --lerning_rate 1",
            "line 2, command: --lerning_rate: ftctl does not know this flag; did you mean --learning_rate?",
        ),
    ] {
        assert!(of(command).contains(problem), "{command} gave {}", of(command));
    }
    assert!(refused("type: command\n").what.contains("command: a command job has one"));
    let all = refused("type: sweep\ncomput: x\ncommand: train.py\n").what;
    let lines: Vec<&str> = all.lines().map(|line| line.split(',').next().unwrap_or_default()).collect();
    assert_eq!(lines, ["job.yml cannot be translated:", "line 1", "line 2", "line 3"], "all at once, in their order");
    for (text, what) in [("- a\n", "job.yml:1: a job is a table of keys"), ("a: *b\n", "job.yml:1: ")] {
        assert!(refused(text).what.starts_with(what), "{}", refused(text).what);
    }
}

#[test]
fn a_job_of_somebody_else_writes_nothing_of_its_own_into_the_job_file() {
    let hostile = format!(
        "{SMALL}display_name: \"x\\n[compute]\\nbackend = 'evil'\"\nenvironment_variables: {{\"A\\n[limits]\": \"1\", B: \"'\\\"\\\\#\"}}\n\
         inputs: {{data: {{path: \"azureml://a\\nname = 'evil'\"}}}}\n"
    );
    let text = translated(&hostile).text;
    assert!(text.chars().all(|c| c == '\n' || !printable::is_order(c)), "{text:?}");
    let job = JobSpec::parse(&text, "job.toml").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((job.name.as_str(), job.compute.backend.as_deref()), ("x-compute-backend-evil", Some(Backend::Azureml.name())));
    assert!(job.compute.environment.keys().eq(["B"]), "{text}");
}

#[test]
fn a_file_that_swells_is_refused_while_it_is_small() {
    let long = format!("inputs:\n  a: {}\ncommand: run_clm.py {}\n", "x".repeat(50_000), "${{inputs.a}} ".repeat(5_000));
    assert!(refused(&long).what.contains("command: it has more than 65536 bytes with everything filled in"));
    let mut many = "command: run_clm.py\ninputs:\n".to_owned();
    for number in 0..200 {
        let _ = writeln!(many, "  i{number}: 1");
    }
    assert!(refused(&many).what.contains("inputs: 100 are the most that are read, not 200"));
}
