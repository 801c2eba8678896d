//! Azure's word that it takes this machine away. A machine asks for it: its metadata service lists events to come, and a preemption
//! is among them half a minute before it happens, or is withdrawn.

use std::{convert::Infallible, time::Duration};

use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::{Client, Url};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use super::{super::notice::Notice, IN_JOB};
use crate::{job::report::Report, transit};

/// Another address for the metadata service, on this machine.
const ENDPOINT: &str = "FTCTL_ENDPOINT_IMDS";
/// The address at which every machine of Azure finds its host.
const SERVICE: &str = "http://169.254.169.254";
const EVENTS: &str = "/metadata/scheduledevents?api-version=2020-07-01";
const NAME: &str = "/metadata/instance/compute/name?api-version=2020-06-01&format=text";

const EVERY: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(5);
/// The first answer on a machine can take two minutes, while the service begins to serve it.
const SILENCE: Duration = Duration::from_secs(180);
/// Events of all machines of a scale set are told to each.
const LARGEST: usize = 1 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Events {
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "EventId")]
    id: String,
    #[serde(rename = "EventType")]
    kind: String,
    #[serde(rename = "Resources", default)]
    machines: Vec<String>,
    #[serde(rename = "NotBefore", default)]
    not_before: String,
}

/// Where notices for this machine come from.
pub struct Source {
    http: Client,
    address: String,
}

impl Source {
    /// `None` where nothing gives notice but SIGTERM. The error is for a person.
    pub fn of_machine(variables: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let address = match variables(ENDPOINT) {
            Some(address) => address,
            None if variables(IN_JOB).is_some() => SERVICE.to_owned(),
            None => return Ok(None),
        };
        let here = |url: &Url| url.scheme() == "http" && url.host_str().is_some_and(transit::is_loopback);
        if address != SERVICE && !Url::parse(&address).is_ok_and(|url| here(&url)) {
            return Err(format!("{ENDPOINT} is not an http address of this machine: no notice of a preemption is heard"));
        }
        let http = transit::direct().timeout(ANSWER).build();
        let http = http.map_err(|error| format!("no notice of a preemption is heard: {}", transit::why(&error)))?;
        Ok(Some(Self { http, address: address.trim_end_matches('/').to_owned() }))
    }

    /// Tells each notice once, and `None` when it was withdrawn. A service that is silent says nothing new.
    pub async fn listen(&self, report: &dyn Report, mut tell: impl FnMut(Option<&Notice>)) -> Infallible {
        let mut known: Option<Notice> = None;
        let (mut heard, mut warned) = (Instant::now(), false);
        loop {
            match self.notice().await {
                Ok(found) => {
                    heard = Instant::now();
                    if found.as_ref().map(|notice| &notice.event) != known.as_ref().map(|notice| &notice.event) {
                        tell(found.as_ref());
                    }
                    known = found;
                }
                Err(why) if heard.elapsed() >= SILENCE && !warned => {
                    warned = true;
                    report.warn(&format!(
                        "the machine's metadata service gives no notice of a preemption: {why}; the training goes on"
                    ));
                }
                Err(_) => {}
            }
            sleep(EVERY).await;
        }
    }

    async fn notice(&self) -> Result<Option<Notice>, String> {
        let preemptions = preemptions(&self.ask(EVENTS).await?)?;
        if preemptions.is_empty() {
            return Ok(None);
        }
        // A notice for another machine costs a checkpoint, one that is not heard costs work: without a name all are ours.
        let name = self.ask(NAME).await.ok();
        let is_ours = |(_, machines): &(Notice, Vec<String>)| {
            name.as_ref().is_none_or(|name| machines.iter().any(|other| other.as_bytes() == name))
        };
        Ok(preemptions.into_iter().find(is_ours).map(|(notice, _)| notice))
    }

    async fn ask(&self, path: &str) -> Result<Vec<u8>, String> {
        let request = self.http.get(format!("{}{path}", self.address)).header("Metadata", "true");
        let answer = request.send().await.map_err(|error| transit::why(&error))?;
        match answer.status().as_u16() {
            200 => transit::body(answer, LARGEST).await,
            status => Err(format!("it answered {status}")),
        }
    }
}

/// The preemptions in an answer of the service, each with the machines that it takes.
pub fn preemptions(answer: &[u8]) -> Result<Vec<(Notice, Vec<String>)>, String> {
    let list: Events = serde_json::from_slice(answer).map_err(|_| "its answer is not a list of events".to_owned())?;
    let preemptions = list.events.into_iter().filter(|event| event.kind == "Preempt").map(|event| {
        let at = DateTimeParser::new().parse_timestamp(&event.not_before).ok();
        (Notice { event: event.id, at }, event.machines)
    });
    Ok(preemptions.collect())
}

#[cfg(test)]
pub mod tests {
    use std::{
        future::pending,
        sync::{Arc, Mutex},
    };

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::agent::tests::Said;

    /// The answer of a machine's metadata service. `None`: it says nothing, and holds the line.
    type Answer = Option<(u16, String)>;

    /// A metadata service of one machine, called `node_7`.
    pub struct Imds {
        pub address: String,
        events: Arc<Mutex<Answer>>,
        name: Arc<Mutex<Answer>>,
    }

    impl Imds {
        pub async fn start() -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            let (events, name) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(Some((200, "node_7".to_owned())))));
            let served = (Arc::clone(&events), Arc::clone(&name));
            tokio::spawn(async move {
                loop {
                    let (line, served) = (listener.accept().await.unwrap().0, served.clone());
                    tokio::spawn(Self::answer(line, served));
                }
            });
            let imds = Self { address, events, name };
            imds.announce(&[]);
            imds
        }

        async fn answer(mut line: TcpStream, (events, name): (Arc<Mutex<Answer>>, Arc<Mutex<Answer>>)) {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(line.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap();
            let asked =
                |path: &str| head.starts_with(&format!("GET {path} HTTP/1.1\r\n")) && head.contains("\r\nmetadata: true\r\n");
            assert!(asked(EVENTS) || asked(NAME), "{head}");
            let answer = if asked(EVENTS) { events } else { name }.lock().unwrap().clone();
            let Some((status, body)) = answer else { return pending().await };
            let head = format!("HTTP/1.1 {status} \r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            // A client that gave up is its own affair.
            let _ = line.write_all((head + &body).as_bytes()).await;
        }

        /// Events of these ids, kinds and machines.
        pub fn announce(&self, events: &[(&str, &str, &str)]) {
            let events: Vec<_> = events.iter().map(|(id, kind, machine)| serde_json::json!({
                "EventId": id, "EventStatus": "Scheduled", "EventType": kind, "ResourceType": "VirtualMachine",
                "Resources": [machine], "NotBefore": "Thu, 26 Nov 2026 18:29:47 GMT", "Description": "", "EventSource": "Platform",
            })).collect();
            self.answers(Some((200, serde_json::json!({ "DocumentIncarnation": 1, "Events": events }).to_string())));
        }

        pub fn answers(&self, answer: Answer) {
            *self.events.lock().unwrap() = answer;
        }

        pub fn source(&self) -> Source {
            Source::of_machine(&|name| (name == ENDPOINT).then(|| self.address.clone())).unwrap().unwrap()
        }
    }

    const OURS: (&str, &str, &str) = ("A", "Preempt", "node_7");

    #[tokio::test]
    async fn a_preemption_of_this_machine_is_noticed_and_nothing_else() {
        let imds = Imds::start().await;
        assert_eq!(imds.source().notice().await, Ok(None));
        imds.announce(&[("B", "Reboot", "node_7"), ("C", "Preempt", "node_8")]);
        assert_eq!(imds.source().notice().await, Ok(None));
        imds.announce(&[("C", "Preempt", "node_8"), OURS]);
        let at = Some("2026-11-26T18:29:47Z".parse().unwrap());
        assert_eq!(imds.source().notice().await, Ok(Some(Notice { event: "A".to_owned(), at })));
        // Whose it is cannot be known.
        *imds.name.lock().unwrap() = Some((404, String::new()));
        let found = imds.source().notice().await.unwrap().unwrap();
        assert_eq!(found.event, "C");
    }

    #[tokio::test]
    async fn rubbish_is_no_notice() {
        let imds = Imds::start().await;
        for (status, body, why) in [
            (200, "<html>".to_owned(), "not a list of events"),
            (200, "{}".to_owned(), "not a list of events"),
            (200, r#"{"Events":[{"EventType":"Preempt"}]}"#.to_owned(), "not a list of events"),
            (200, r#"{"Events":"#.to_owned() + &"[".repeat(100_000), "not a list of events"),
            (200, " ".repeat(LARGEST + 1), "more than 1048576 bytes"),
            (307, String::new(), "it answered 307"),
            (500, r#"{"Events":[]}"#.to_owned(), "it answered 500"),
        ] {
            imds.answers(Some((status, body)));
            let error = imds.source().notice().await.unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[tokio::test]
    async fn a_notice_is_told_once_and_so_is_its_withdrawal() {
        let imds = Imds::start().await;
        let (told, said) = (Mutex::new(Vec::new()), Said::default());
        let source = imds.source();
        let listen = source.listen(&said, |notice| told.lock().unwrap().push(notice.map(|notice| notice.event.clone())));
        let script = async {
            let come_to = async |count: usize| {
                while told.lock().unwrap().len() < count {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            imds.announce(&[OURS]);
            come_to(1).await;
            // Silence and rubbish take nothing back.
            imds.answers(Some((500, String::new())));
            sleep(2 * EVERY).await;
            imds.announce(&[]);
            come_to(2).await;
            imds.announce(&[("D", "Preempt", "node_7")]);
            come_to(3).await;
        };
        tokio::select! {
            never = listen => match never {},
            () = script => {}
        }
        let event = |id: &str| Some(id.to_owned());
        assert_eq!(*told.lock().unwrap(), [event("A"), None, event("D")]);
        assert_eq!(said.lines(), Vec::<String>::new());
    }

    /// Time passes while it waits for a service that never answers.
    #[tokio::test(start_paused = true)]
    async fn a_silent_service_is_told_of_once() {
        let said = Said::default();
        let source = Source { http: transit::direct().timeout(ANSWER).build().unwrap(), address: "http://127.0.0.1:1".to_owned() };
        let listen = source.listen(&said, |_| panic!("no one said so"));
        assert!(tokio::time::timeout(3 * SILENCE, listen).await.is_err());
        assert!(said.lines().len() == 1 && said.lines()[0].contains("gives no notice of a preemption"), "{:?}", said.lines());
    }

    #[test]
    fn only_a_job_of_azure_ml_asks_and_only_its_own_host() {
        let of = |pairs: &[(&str, &str)]| {
            let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            Source::of_machine(&value).map(|source| source.map(|source| source.address))
        };
        assert_eq!(of(&[("AZURE_CLIENT_ID", "x")]), Ok(None));
        assert_eq!(of(&[(IN_JOB, "ftctl-1")]), Ok(Some(SERVICE.to_owned())));
        assert_eq!(of(&[(IN_JOB, "x"), (ENDPOINT, "http://127.0.0.1:8/")]), Ok(Some("http://127.0.0.1:8".to_owned())));
        for elsewhere in ["http://10.0.0.4", "https://example.org", "http://169.254.169.253", "x"] {
            assert!(of(&[(ENDPOINT, elsewhere)]).unwrap_err().contains(ENDPOINT), "{elsewhere}");
        }
    }
}
