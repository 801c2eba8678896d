//! The meaning of job files, and what earlier attempts leave of a plan.

use super::*;
use crate::job::gce::GcePlan;

fn resolve(text: &str) -> Plan {
    let choices = Choices {
        backend: "local".into(),
        image: ImageSpec::default(),
        store: "/store".into(),
        ttl: Span(Duration::from_secs(7_200)),
        max_cost: None,
        max_wait: DEFAULT_MAX_WAIT,
    };
    let spec = JobSpec::parse(text, "job.toml").expect("valid");
    Plan::resolve(&spec, Compute::Local, choices, Path::new("/home/me/jobs")).expect("a plan")
}

#[test]
fn each_process_does_what_the_job_file_says_of_a_step() {
    let text = "name = \"a\"\ndataset = \"d\"\n[compute]\nprocesses_per_node = 3\n[train]\ngradient_accumulation = 4";
    let plan = resolve(text);
    assert_eq!((plan.processes, plan.train.gradient_accumulation, plan.train.leaves), (3, 12, Some(3)));
    assert_eq!(plan.check(|_| Vec::new()), Ok(()));
    let file = plan.job_file();
    assert_eq!((file.compute.processes_per_node, file.train.gradient_accumulation, file.train.leaves), (Some(3), 4, Some(3)));
    let more = Plan { processes: 4, ..plan };
    let refused = more.check(|_| Vec::new()).expect_err("more processes than leaves").to_string();
    assert!(refused.contains("4 processes cannot share a step of 3 leaves"), "{refused}");
    let two = resolve(&text.replace("[train]", "nodes = 2\n[train]"));
    assert_eq!((two.nodes, two.processes, two.train.gradient_accumulation, two.train.leaves), (2, 6, 24, Some(6)));
    let file = two.job_file();
    assert_eq!((file.compute.nodes, file.compute.processes_per_node, file.train.gradient_accumulation), (Some(2), Some(3), 4));
    for (nodes, processes) in [(0, 6), (4, 6), (7, 6)] {
        let wrong = Plan { processes, nodes, ..two.clone() };
        assert!(wrong.check(|_| Vec::new()).is_err_and(|broken| broken.key == "compute.nodes"), "{nodes} {processes}");
    }
    let alone = resolve("name = \"a\"\ndataset = \"d\"");
    assert_eq!((alone.processes, alone.train.leaves), (1, None));
    assert_eq!(alone.job_file().compute.processes_per_node, Some(1), "also where it goes on with more GPUs");
}

#[test]
fn a_process_needs_a_gpu_of_its_own_where_there_are_some_and_nodes_a_backend_that_has_them() {
    let choices = |backend: &str| Choices {
        backend: backend.into(),
        image: ImageSpec::default(),
        store: "/store".into(),
        ttl: Span(Duration::from_secs(7_200)),
        max_cost: None,
        max_wait: DEFAULT_MAX_WAIT,
    };
    let resolve = |compute: &Compute, text: &str| {
        let spec = JobSpec::parse(&format!("name = \"a\"\ndataset = \"d\"\n{text}"), "job.toml").expect("valid");
        Plan::resolve(&spec, compute.clone(), choices(compute.backend()), Path::new("/")).map(|plan| plan.processes)
    };
    let gce = Compute::Gce(Box::new(GcePlan { accelerators: 4, ..GcePlan::default() }));
    let four = "[compute]\nprocesses_per_node = 4\n";
    assert_eq!(resolve(&gce, four), Ok(4));
    let five = four.replace('4', "5");
    assert_eq!(resolve(&gce, &five), Err(PlanError::TooFewGpus { processes: 5, gpus: 4 }));
    assert_eq!(resolve(&gce, &format!("{five}[train]\ndevice = \"cpu\"")), Ok(5));
    assert_eq!(resolve(&Compute::Local, &five), Ok(5), "the number of GPUs is unknown");
    let none = GcePlan { accelerators: 0, ..GcePlan::default() };
    for (compute, text, processes) in [
        (&gce, "", 4),
        (&gce, "[compute]\nprocesses_per_node = 1", 1),
        (&gce, "[train]\ndevice = \"cpu\"", 1),
        (&gce, "[train]\nleaves = 8\ngradient_accumulation = 8", 4),
        (&Compute::Gce(Box::new(none)), "", 1),
        (&Compute::Local, "", 1),
    ] {
        assert_eq!(resolve(compute, text), Ok(processes), "{text}");
    }
    let few = "[train]\nleaves = 2\ngradient_accumulation = 2";
    assert_eq!(resolve(&gce, few), Err(PlanError::TooFewLeaves { processes: 4, leaves: 2 }));
    let nodes = "[compute]\nnodes = 2\nprocesses_per_node = 3";
    assert_eq!(resolve(&Compute::Azureml(Box::default()), &nodes.replace('3', "1")), Ok(2));
    assert_eq!(resolve(&Compute::Local, nodes), Ok(6));
    assert_eq!(resolve(&gce, nodes), Err(PlanError::OneMachine { nodes: 2, backend: gce.backend().to_owned() }));
}

#[test]
fn paths_begin_at_the_job_file() {
    let plan = resolve(
        "name = \"a\"\ninitial_weights = \"./gpt2\"\n[data]\ntrain = [\"a/*.txt\", \"/b.txt\"]\nvalidation = [\"../v.txt\"]",
    );
    assert_eq!(plan.initial_weights.as_deref(), Some("/home/me/jobs/gpt2"));
    let DataPlan::Text(data) = plan.data else { panic!("text expected") };
    assert_eq!(data.train, ["/home/me/jobs/a/*.txt", "/b.txt"]);
    assert_eq!(data.validation, ["/home/me/jobs/../v.txt"], "a link may make .. lead elsewhere, so it stays");
}

#[test]
fn a_dataset_is_a_digest_a_name_or_a_directory() {
    assert_eq!(resolve("name = \"a\"\ndataset = \"@texts\"").data, DataPlan::Named("texts".to_owned()));
    let digest = "0123456789abcdef".repeat(4);
    assert_eq!(
        resolve(&format!("name = \"a\"\ndataset = \"{digest}\"")).data,
        DataPlan::Digest(Digest::parse(&digest).expect("a digest"))
    );
    let directory = format!("/home/me/jobs/{}", &digest[1..]);
    assert_eq!(resolve(&format!("name = \"a\"\ndataset = \"{}\"", &digest[1..])).data, DataPlan::Directory(directory));
}

#[test]
fn retries_have_defaults_and_single_values_override_them() {
    let plan = resolve("name = \"a\"\ndataset = \"d\"\n[retry]\nattempts = 3\non = []");
    assert_eq!(
        plan.retry,
        RetryPlan {
            on: vec![],
            attempts: 3,
            backoff: "1s".parse().expect("span"),
            max_backoff: "5m".parse().expect("span"),
            shrink: false
        }
    );
}

/// Those of single machines, in seconds.
fn lives(seconds: &[u64]) -> Vec<Life> {
    seconds.iter().map(|seconds| Life { time: Duration::from_secs(*seconds), nodes: 1 }).collect()
}

#[test]
fn fewer_machines_share_the_same_step_and_cost_their_part() {
    let text = "name = \"a\"\ndataset = \"d\"\n[compute]\nnodes = 3\nprocesses_per_node = 2\n[retry]\nshrink = true";
    let plan = Plan { lasting_price_per_hour: Some(Money { micros: 9_000_000 }), ..resolve(text) };
    let plan = Plan { price_per_hour: Money { micros: 3_600_001 }, ..plan };
    assert!(plan.retry.shrink);
    let shape = |plan: &Plan| (plan.nodes, plan.processes, plan.price_per_hour.micros);
    assert_eq!([0, 1, 2, 3, 9].map(|nodes| shape(&plan.on(nodes)).0), [1, 1, 2, 3, 3]);
    assert_eq!((shape(&plan.on(3)), shape(&plan.on(2))), ((3, 6, 3_600_001), (2, 4, 2_400_001)), "rounded up");
    let one = plan.on(1);
    assert_eq!((&one.train, one.lasting_price_per_hour.map(|price| price.micros)), (&plan.train, Some(3_000_000)));
    assert_eq!(one.job_file().train.leaves, Some(6));
}

#[test]
fn money_that_fewer_machines_spare_is_time() {
    let text = "name = \"a\"\ndataset = \"d\"\n[compute]\nnodes = 2";
    let usd = |text: &str| text.parse::<Money>().expect("money");
    // An hour of both, in a life of two.
    let plan = Plan { price_per_hour: usd("2USD"), max_cost: Some(usd("2USD")), ..resolve(text) };
    let left = |earlier: &[(u64, usize)], nodes| {
        let life = |&(seconds, nodes)| Life { time: Duration::from_secs(seconds), nodes };
        let left = plan.left(&earlier.iter().map(life).collect::<Vec<_>>(), nodes)?;
        Some((left.lifetime().as_secs(), left.price_per_hour.micros))
    };
    assert_eq!((left(&[], 2), left(&[], 1)), (Some((3_600, 2_000_000)), Some((7_200, 1_000_000))));
    // Each is charged its farewell of half a minute.
    assert_eq!(left(&[(1_770, 2)], 2), Some((1_800, 2_000_000)));
    assert_eq!(left(&[(1_770, 2)], 1), Some((3_600, 1_000_000)));
    assert_eq!(left(&[(1_770, 1)], 2), Some((2_700, 2_000_000)));
    assert_eq!(left(&[(5_370, 1)], 1), Some((1_800, 1_000_000)), "what time allows");
    assert_eq!(left(&[(870, 4)], 2), Some((1_800, 2_000_000)), "of a job that had more before it was resumed");
    assert_eq!(left(&[(1_770, 9)], 2), None, "they have cost more than the ceiling");
    assert_eq!((left(&[(3_570, 2)], 1), left(&[(7_150, 1)], 1)), (None, None));
}

#[test]
fn each_machine_is_given_what_earlier_ones_left() {
    let plan = resolve("name = \"a\"\ndataset = \"d\"");
    let left = |earlier: &[u64]| plan.left(&lives(earlier), 1).map(|plan| plan.ttl.0.as_secs());
    assert_eq!(left(&[]), Some(7_200));
    assert_eq!(left(&[600]), Some(6_570));
    assert_eq!(left(&[1, 1, 1]), Some(7_020), "a minute is charged for each");
    assert_eq!(left(&[7_110]), Some(60));
    assert_eq!(left(&[7_111]), None);
    assert_eq!(left(&[u64::MAX, u64::MAX]), None);
}

#[test]
fn time_that_a_service_charges_around_a_job_is_kept_back() {
    let mut plan = resolve("name = \"a\"\ndataset = \"d\"");
    assert_eq!(plan.work(), plan.lifetime());
    *plan.compute = Compute::Azureml(Box::default());
    let left = |earlier: &[u64]| plan.left(&lives(earlier), 1).map(|plan| (plan.ttl.0.as_secs(), plan.work().as_secs()));
    assert_eq!(left(&[]), Some((7_200, 7_200 - 810)));
    assert_eq!(left(&[1_000]), Some((7_200 - 1_210, 7_200 - 1_210 - 810)), "its node was idle, and left");
    assert_eq!(left(&[7_200 - 210 - 870]), Some((870, 60)));
    assert_eq!(left(&[7_200 - 210 - 869]), None, "no minute is left to work");
    let ceiling = |text: &str| Some(text.parse::<Money>().expect("money"));
    let hour = "3.6USD".parse::<Money>().expect("money");
    assert!(Plan { max_cost: ceiling("0.87USD"), ..plan.clone() }.priced(hour).is_ok());
    let error = Plan { max_cost: ceiling("0.869USD"), ..plan.clone() }.priced(hour).expect_err("nothing is left");
    assert!(error.to_string().ends_with("less than the 14m30s a job needs at least"), "{error}");
}

#[test]
fn a_machine_with_an_early_notice_has_that_long_to_say_farewell() {
    let mut plan = resolve("name = \"a\"\ndataset = \"d\"\n[compute.gce]\npreemption_notice = \"2m\"");
    assert_eq!(plan.farewell(), FAREWELL, "other backends have no notice");
    let notice = Some(Span(Duration::from_secs(120)));
    *plan.compute = Compute::Gce(Box::new(GcePlan { preemption_notice: notice, ..GcePlan::default() }));
    assert_eq!(plan.farewell(), Duration::from_secs(150));
}

#[test]
fn the_ceiling_in_money_becomes_a_deadline() {
    let plan = resolve("name = \"a\"\ndataset = \"d\"");
    let usd = |text: &str| text.parse::<Money>().expect("money");
    let priced = |max_cost: Option<&str>, price| Plan { max_cost: max_cost.map(usd), ..plan.clone() }.priced(usd(price));
    let seconds = |plan: &Plan| plan.lifetime().as_secs();

    let free = priced(None, "0USD").expect("no price, no limit");
    assert_eq!((seconds(&free), free.worst_case), (7_200, Money::ZERO));
    let uncapped = priced(None, "1.5USD").expect("no ceiling");
    assert_eq!((seconds(&uncapped), uncapped.worst_case), (7_200, usd("3USD")));
    let capped = priced(Some("1USD"), "3USD").expect("20 minutes");
    assert_eq!((seconds(&capped), capped.worst_case), (1_200, usd("1USD")));
    let uneven = priced(Some("1USD"), "0.7USD").expect("rounded down");
    assert!(uneven.worst_case <= usd("1USD"), "{}", uneven.worst_case);
    assert!(matches!(priced(Some("0.01USD"), "3USD"), Err(PlanError::OverBudget { .. })));
    assert!(priced(Some("0USD"), "0USD").is_ok(), "what costs nothing needs no money");
}
