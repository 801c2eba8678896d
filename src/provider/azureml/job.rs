//! The service's description of a job.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::{
    super::{
        Sighting,
        whose::{Mark, Said},
    },
    body,
    refusal::{Refusal, reports_process, told},
};
use crate::job::{
    azureml::START,
    clock::after,
    id::{AttemptId, JobId},
};

/// Parts of the words in which the service says that a machine could not begin with a job, and no other would.
const UNFIT: [&str; 10] = [
    "pull docker image",
    "pull the docker image",
    "pullingimage",
    "imagebuild",
    "acrrefreshtoken",
    "environment preparation",
    "failed to mount",
    "unable to mount",
    "streamaccess.",
    "identity",
];
const PREEMPTED: [&str; 2] = ["preempt", "pre-empt"];
/// The same of a job that the service ended at the limit of its time.
const TOO_LATE: [&str; 3] = ["exceed", "timeout", "timed out"];

/// In which the service ends a job that has reached the limit.
const LATE: Duration = Duration::from_secs(180);

/// How a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It has no machine that works on it.
    Waiting,
    /// Whether it ever had one, the run history tells.
    Doubtful,
    Running,
    /// Somebody cancelled it, and it may still have a machine.
    Ending,
    Over,
}

/// The name in a description of a job. It is read first: nothing of the description is trusted before it fits.
pub fn name(job: &Value) -> Option<&str> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
    job["name"].as_str().filter(|name| (1..=255).contains(&name.len()) && name.bytes().all(fits))
}

pub fn tags(job: &Value) -> &Value {
    &job["properties"]["tags"]
}

/// The tags' word on an owner.
pub fn said(tags: &Value) -> Said<'_> {
    Said { owner: tags[body::OWNER].as_str(), store: tags[body::STORE].as_str(), url: None }
}

/// Whether tags say that something is of this job, and of no equal one in another store. A filter is no proof: whatever a list
/// answers is compared before it is touched.
pub fn is_of(tags: &Value, job: &JobId, mark: &Mark<'_>) -> bool {
    tags[body::JOB] == job.as_str() && mark.reaches(said(tags))
}

/// The attempt that something of ours is, or was made for; `None` where its tags name none.
pub fn attempt(tags: &Value) -> Option<AttemptId> {
    let number = tags[body::ATTEMPT].as_str().and_then(|number| number.parse().ok()).unwrap_or(0);
    let id = AttemptId::new(&JobId::parse(tags[body::JOB].as_str()?)?, number);
    AttemptId::from_machine_name(&id.machine_name())
}

/// How many nodes it has when it has all.
pub fn nodes(job: &Value) -> u32 {
    let wanted = job["properties"]["resources"]["instanceCount"].as_u64();
    wanted.map_or(1, |nodes| u32::try_from(nodes).unwrap_or(u32::MAX)).max(1)
}

pub fn created(resource: &Value) -> Timestamp {
    time(&resource["systemData"]["createdAt"]).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Since when a run has its machine, by the run history.
pub fn started(details: &Value) -> Option<Timestamp> {
    time(&details["startTimeUtc"])
}

/// When a run came to its end, by the run history.
pub fn ended(details: &Value) -> Option<Timestamp> {
    time(&details["endTimeUtc"])
}

/// Since when a job may have had its nodes, by the run history: what is reckoned for their start before its programs began, or
/// could not begin. `None` while they have not, and for one that never had any.
pub fn began(job: &Value, details: &Value) -> Option<Timestamp> {
    let failed = || ended(details).filter(|_| status(job) == "Failed");
    let begun = started(details).or_else(failed)?;
    Some(begun.checked_sub(START).unwrap_or(Timestamp::MIN).max(created(job)))
}

pub fn time(text: &Value) -> Option<Timestamp> {
    text.as_str()?.parse().ok()
}

pub fn status(job: &Value) -> &str {
    job["properties"]["status"].as_str().unwrap_or("nothing")
}

/// Fails for a word that this program does not know: it may mean anything.
pub fn stage(job: &Value) -> Result<Stage, Refusal> {
    Ok(match status(job) {
        "NotStarted" | "Starting" | "Provisioning" | "Preparing" | "Queued" | "Paused" => Stage::Waiting,
        "NotResponding" | "Unknown" => Stage::Doubtful,
        "CancelRequested" => Stage::Ending,
        "Running" | "Finalizing" => Stage::Running,
        "Completed" | "Failed" | "Canceled" => Stage::Over,
        other => {
            let job = name(job).unwrap_or("a job");
            return Err(Refusal::lost(&format!("tell how {job} stands"), &format!("`{}` is not a status", other.escape_debug())));
        }
    })
}

/// Whether it may still have, or get, a machine.
pub fn is_live(job: &Value) -> bool {
    stage(job).map_or(true, |stage| stage != Stage::Over)
}

/// Whether it has no node yet, for sure.
pub fn is_waiting(job: &Value) -> bool {
    stage(job).is_ok_and(|stage| stage == Stage::Waiting)
}

/// The resource id of the cluster that it runs on.
pub fn cluster(job: &Value) -> Option<&str> {
    job["properties"]["computeId"].as_str()
}

/// Whether the service may have ended it at the limit of its time. That counts from its submission at the earliest.
pub fn may_be_too_late(job: &Value, now: Timestamp) -> bool {
    limit(job).is_some_and(|limit| after(created(job), limit) <= now)
}

/// How long the service lets it run.
pub fn limit(job: &Value) -> Option<Duration> {
    job["properties"]["limits"]["timeout"].as_str().and_then(body::read_seconds)
}

/// The meaning of a job's end. `details` are the run history's words. `nodes_were_taken`: its cluster has lost nodes.
pub fn end(job: &Value, details: &Value, nodes_were_taken: bool) -> Sighting {
    let (code, message) = told(details).unwrap_or_default();
    let said = if reports_process(&message) { String::new() } else { format!("{code} {message}").to_ascii_lowercase() };
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    // Its time may count from its start, or from its submission. No job lives past the former; at the latter it may be in a queue.
    let is_late = || {
        limit(job).zip(ended(details)).is_some_and(|(limit, ended)| {
            let since_submission = after(created(job), limit);
            started(details).is_some_and(|began| after(began, limit) <= ended)
                || (since_submission..=after(since_submission, LATE)).contains(&ended)
        })
    };
    let why = match status(job) {
        "Canceled" if message.is_empty() && is_late() => "it reached the limit of its time".to_owned(),
        "Canceled" if !has(&PREEMPTED) && !has(&TOO_LATE) => return cancelled(&message),
        "Failed" if has(&PREEMPTED) || (message.is_empty() && nodes_were_taken) => "preempted".to_owned(),
        "Failed" if has(&UNFIT) => return Sighting::Unfit { why: message },
        "Completed" => "the job is completed".to_owned(),
        _ if message.is_empty() => "the job has failed, and Azure ML does not say why".to_owned(),
        _ => message,
    };
    Sighting::Dead { why }
}

/// The sighting of a job that somebody cancelled; `message` is the service's, which may be empty.
pub fn cancelled(message: &str) -> Sighting {
    let told = if message.is_empty() { String::new() } else { format!(": {message}") };
    Sighting::Cancelled { why: format!("cancelled in Azure ML{told}") }
}

/// Whether its agent ended since somebody denied it something: another attempt's would fare no better.
pub fn was_denied(details: &Value) -> bool {
    const DENIED: &str = "4";
    let said = told(details).map(|(_, message)| message).unwrap_or_default();
    let code = said.split_once("exited with status code ").map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
    code == Some(Some(DENIED))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_status_has_its_stage_and_another_is_named() {
        let stage = |status: &str| stage(&json!({ "name": "job", "properties": { "status": status } }));
        for (status, found) in [
            ("NotStarted", Stage::Waiting),
            ("Starting", Stage::Waiting),
            ("Provisioning", Stage::Waiting),
            ("Preparing", Stage::Waiting),
            ("Queued", Stage::Waiting),
            ("Paused", Stage::Waiting),
            ("NotResponding", Stage::Doubtful),
            ("Unknown", Stage::Doubtful),
            ("CancelRequested", Stage::Ending),
            ("Running", Stage::Running),
            ("Finalizing", Stage::Running),
            ("Completed", Stage::Over),
            ("Failed", Stage::Over),
            ("Canceled", Stage::Over),
        ] {
            assert_eq!(stage(status).ok(), Some(found), "{status}");
        }
        for status in ["running", "", "Evicted"] {
            assert!(
                stage(status).is_err_and(|refusal| refusal.message.contains(&format!("`{status}` is not a status"))),
                "{status}"
            );
        }
    }

    #[test]
    fn an_end_says_whether_another_machine_may_help() {
        let ended = |status: &str, message: &str, taken| {
            let error =
                if message.is_empty() { Value::Null } else { json!({ "error": { "code": "UserError", "message": message } }) };
            end(&json!({ "properties": { "status": status } }), &json!({ "error": error }), taken)
        };
        let dead = |why: &str| Sighting::Dead { why: why.to_owned() };
        let exit = "Execution failed. User process exited with status code 1.";
        let timeout = "The run was canceled: it exceeded the timeout of its limits.";
        // Words of the user's process, which are not the service's.
        let identity = "Execution failed. User process 'sh' exited with status code 1. Error: this identity has no rights; StreamAccess.Denied";
        let told = "Process 'python' exited with status code 3. KeyError: 'preempted'";
        let late = "User process exited with status code 1: the timeout was exceeded";
        let preempted = "AzureMLCompute job failed. PreemptionError: Nodes of this job got pre-empted.";
        for (sighting, expected) in [
            (ended("Completed", "", false), dead("the job is completed")),
            (ended("Canceled", "", true), cancelled("")),
            (ended("Canceled", "by a user", false), Sighting::Cancelled { why: "cancelled in Azure ML: by a user".to_owned() }),
            (ended("Canceled", timeout, false), dead(timeout)),
            (ended("Canceled", preempted, false), dead(preempted)),
            (ended("Failed", exit, true), dead(exit)),
            (ended("Failed", preempted, false), dead("preempted")),
            (ended("Failed", identity, false), dead(identity)),
            (ended("Failed", told, true), dead(told)),
            (ended("Canceled", late, false), cancelled(late)),
            (ended("Failed", "", true), dead("preempted")),
            (ended("Failed", "", false), dead("the job has failed, and Azure ML does not say why")),
        ] {
            assert_eq!(sighting, expected);
        }
        let limited = json!({ "properties": { "status": "Canceled", "limits": { "timeout": "PT60S" } } });
        for (over, expected) in [("12:00:59", cancelled("")), ("12:01:00", dead("it reached the limit of its time"))] {
            let details = json!({ "startTimeUtc": "2026-11-20T12:00:00Z", "endTimeUtc": format!("2026-11-20T{over}Z") });
            assert_eq!(end(&limited, &details, false), expected, "{over}");
        }
        let mut queued = limited;
        queued["systemData"] = json!({ "createdAt": "2026-11-20T12:00:00Z" });
        for (over, expected) in [
            ("12:00:59", cancelled("")),
            ("12:01:00", dead("it reached the limit of its time")),
            ("12:04:00", dead("it reached the limit of its time")),
            ("12:04:01", cancelled("")),
        ] {
            let details = json!({ "endTimeUtc": format!("2026-11-20T{over}Z") });
            assert_eq!(end(&queued, &details, false), expected, "{over} without a start");
        }
        for why in [
            "AzureMLCompute job failed. FailedPullingImage: Unable to pull docker image",
            "AcrRefreshTokenRetrievalError: Unable to retrieve ACR refresh token",
            "The identity of the cluster has no rights",
            "Failed to mount the datastore",
            "AzureMLCompute job failed. AZFMountError: unable to mount Azure File Info: Could not mount Azure File Share",
            "Error Code: ScriptExecution.StreamAccess.Authentication. Native Error: PermissionDenied",
        ] {
            assert_eq!(ended("Failed", why, false), Sighting::Unfit { why: why.to_owned() });
        }
    }

    #[test]
    fn an_agent_that_was_denied_something_is_known_by_its_exit_code() {
        let ended = |message: &str| was_denied(&json!({ "error": { "code": "UserError", "message": message } }));
        assert!(ended("Execution failed. User process 'sh' exited with status code 4. Please check the log."));
        for other in ["exited with status code 1", "exited with status code 42.", "exited with status code ", "4", ""] {
            assert!(!ended(&format!("Execution failed. User process {other}")), "{other}");
        }
    }

    #[test]
    fn the_start_of_a_node_that_nobody_saw_is_reckoned() {
        let since = |status: &str, started: Option<&str>, ended: Option<&str>| {
            let job = json!({ "systemData": { "createdAt": "2026-11-20T12:00:00Z" }, "properties": { "status": status } });
            let at = |time: Option<&str>| time.map(|time| format!("2026-11-20T{time}:00Z"));
            let began = began(&job, &json!({ "startTimeUtc": at(started), "endTimeUtc": at(ended) }));
            began.map(|time| time.strftime("%H:%M").to_string())
        };
        let told = |time: &str| Some(time.to_owned());
        assert_eq!(since("Running", Some("12:30"), None), told("12:20"));
        assert_eq!(since("Completed", Some("12:04"), Some("12:30")), told("12:00"), "not before it was asked for");
        assert_eq!(since("Failed", None, Some("13:30")), told("13:20"), "its image could not be pulled");
        assert_eq!((since("Canceled", None, Some("13:30")), since("Queued", None, None)), (None, None));
    }

    #[test]
    fn what_tags_say_is_no_more_than_an_attempt() {
        let id = JobId::derive("job", "nonce");
        let attempt_of = |job: &str, number: &str| attempt(&json!({ "ftctl-job": job, "ftctl-attempt": number }));
        let tagged = |number: &str| attempt_of(id.as_str(), number);
        assert_eq!(tagged("3"), Some(AttemptId::new(&id, 3)));
        assert_eq!(tagged("x"), Some(AttemptId::new(&id, 0)), "somebody made it by hand");
        assert_eq!((tagged("99999"), attempt_of("../x", "1")), (None, None));
        assert_eq!(name(&json!({ "name": "a/../b" })), None);
        assert_eq!(name(&json!({ "name": "ftjob1" })), Some("ftjob1"));
    }
}
