//! `kill -9` of ftctl before and after every request that it makes to a cloud and to the store, in the middle of a life with a
//! shortage and a preemption. The requests are counted in an undisturbed life; none is written down here. Played are those that
//! change something in the cloud and a few of the others, and what follows in turn; with 1 as the value of the cloud's variable
//! ([`Cloud::wish`]) every one, with `all` every one with all three that may follow.

use std::{
    fs,
    io::{self, BufReader, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use crate::{
    azurite::{self, Azurite},
    devcloud::Devcloud,
    proxy::{self, Message},
    sandbox::{Sandbox, kill},
};

pub const STEPS: u64 = 200;
pub const TTL: u64 = 3_600;
const WORKERS: usize = 8;
/// A life on a busy machine may be over with fewer polls than the undisturbed one, and before the request at which it should have
/// died.
const TRIES: usize = 3;

const SPEED: &str = "10";

/// Where ftctl is killed.
pub struct Cloud {
    /// The variable that says how many deaths are played.
    pub wish: &'static str,
    /// Otherwise one of this many requests that change nothing in the cloud is played.
    pub sample: usize,
    pub start: fn(&mut Sandbox, &str) -> Devcloud,
    /// Writes `job.toml`.
    pub job: fn(&Sandbox),
    pub max_cost: f64,
    /// For so many simulated seconds after its time something of a job may cost.
    pub rest: u64,
    /// The name of every machine that was ever made, as often as it was.
    pub made: fn(&Devcloud) -> Vec<String>,
    /// The name of everything that there is.
    pub there: fn(&Devcloud) -> Vec<String>,
}

/// A command, and the state before it.
pub struct Stage {
    pub script: &'static str,
    /// Changes the job.
    pub change: fn(&Path),
    pub before: &'static [&'static [&'static str]],
    pub command: &'static [&'static str],
    /// Whether the job succeeds with it.
    pub succeeds: bool,
    /// How many machines an undisturbed life has.
    pub machines: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    Before,
    After,
}

/// The event after the death.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// The same command once more.
    Again,
    /// A user of another store destroys the machines that the cloud shows.
    Down,
    /// No command follows.
    Nothing,
}

static THEN: [Then; 3] = [Then::Again, Then::Down, Then::Nothing];

#[derive(Default)]
struct Watched {
    /// Method and path of each request of ftctl.
    requests: Vec<String>,
    victim: Option<u32>,
    death: Option<(Which, When)>,
}

/// A request by its name, in which numbers differ from life to life, and how many of that name came before: polls, which are as
/// many as the time allows, do not make it another.
type Which = (String, usize);

fn which(requests: &[String], index: usize) -> Which {
    let bare = |name: &String| {
        // The job's id, and what is named after it or after its store, are of the store, which each life has for itself.
        let parts = name.split('/').map(|part| match (part.split_once("job-"), part.split_once("ftctl-c")) {
            (Some((_, rest)), _) => format!("job{}", rest.get(6..).unwrap_or_default()),
            (None, Some(_)) => "cluster".to_owned(),
            (None, None) if part.matches('-').count() == 4 => "id".to_owned(),
            (None, None) => part.to_owned(),
        });
        parts.collect::<Vec<_>>().join("/").chars().filter(|char| !char.is_ascii_digit()).collect::<String>()
    };
    let name = bare(&requests[index]);
    let before = requests[..index].iter().filter(|other| bare(other) == name).count();
    (name, before)
}

/// The point that all of ftctl's requests pass on their way to the cloud and to the store.
#[derive(Clone)]
struct Line {
    port: u16,
    cloud: u16,
    store: u16,
    watched: Arc<Mutex<Watched>>,
}

impl Line {
    fn start(cloud: u16, store: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Self { port: listener.local_addr().unwrap().port(), cloud, store, watched: Arc::default() };
        let own = line.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let own = own.clone();
                // A connection that ends in an error has ended.
                thread::spawn(move || drop(own.serve(client)));
            }
        });
        line
    }

    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let mut from_client = BufReader::new(client.try_clone()?);
        while let Some(request) = proxy::read(&mut from_client, false)? {
            let name = name(&request);
            let number = self.number(&request, &name);
            if self.kills(number, When::Before) {
                return client.shutdown(Shutdown::Both);
            }
            let port = if is_of_the_cloud(&name) { self.cloud } else { self.store };
            let mut service = TcpStream::connect(("127.0.0.1", port))?;
            service.write_all(&request.head)?;
            service.write_all(&request.body)?;
            let answer = proxy::read(&mut BufReader::new(service), name.starts_with("HEAD"))?;
            let Some(mut answer) = answer else { return Ok(()) };
            for part in [&mut answer.head, &mut answer.body] {
                self.lead_here(part);
            }
            if self.kills(number, When::After) {
                return client.shutdown(Shutdown::Both);
            }
            client.write_all(&answer.head)?;
            client.write_all(&answer.body)?;
        }
        Ok(())
    }

    /// The cloud's answers say where it is itself.
    fn lead_here(&self, bytes: &mut [u8]) {
        let [away, here] = [self.cloud, self.port].map(|port| format!("127.0.0.1:{port}").into_bytes());
        assert_eq!(away.len(), here.len(), "a port of another length");
        for at in 0..bytes.len().saturating_sub(away.len() - 1) {
            if bytes[at..].starts_with(&away) {
                bytes[at..at + here.len()].copy_from_slice(&here);
            }
        }
    }

    /// `None` for one of an agent: those ask the store alone, have no key, and a signature in their URL.
    fn number(&self, request: &Message, name: &str) -> Option<usize> {
        let signed = String::from_utf8_lossy(&request.head).to_lowercase().contains("\r\nauthorization:");
        if !signed && !is_of_the_cloud(name) {
            return None;
        }
        let mut watched = self.watched.lock().unwrap();
        watched.requests.push(name.to_owned());
        Some(watched.requests.len() - 1)
    }

    fn kills(&self, number: Option<usize>, when: When) -> bool {
        let watched = self.watched.lock().unwrap();
        let now = number.is_some_and(|number| watched.death == Some((which(&watched.requests, number), when)));
        if now {
            kill(watched.victim.unwrap());
        }
        now
    }
}

/// `POST /compute/v1/...`, without what follows the path. What Azure ML knows of a store and a model has their digests for a name,
/// which are others in every life.
fn name(request: &Message) -> String {
    let head = String::from_utf8_lossy(&request.head);
    let line = head.lines().next().unwrap_or_default();
    let name = line.split(['?', '\r']).next().unwrap_or_default().trim_end_matches(" HTTP/1.1");
    let kind = ["/datastores/", "/models/"].into_iter().find_map(|kind| Some(name.find(kind)? + kind.len()));
    name[..kind.unwrap_or(name.len())].to_owned()
}

fn is_of_the_cloud(name: &str) -> bool {
    !name.contains(" /devstoreaccount1")
}

/// A wait for an operation, asked again for as long as that lasts, changes nothing.
fn changes_the_cloud(name: &str) -> bool {
    is_of_the_cloud(name) && !name.starts_with("GET") && !name.ends_with("/wait")
}

/// Every life makes this request. A deletion is asked for again until the thing is gone: how often depends on the time that takes.
fn comes_always(requests: &[String], index: usize) -> bool {
    let is_repeated = || which(requests, index).1 > 0;
    changes_the_cloud(&requests[index]) && !(requests[index].starts_with("DELETE") && is_repeated())
}

/// A cloud, a container and a home, all new.
struct Place {
    cloud: &'static Cloud,
    /// It is asked for its calls when it goes, and the sandbox ends all that runs in it.
    devcloud: Devcloud,
    sandbox: Sandbox,
    line: Line,
    _azurite: Arc<Azurite>,
}

impl Place {
    fn new(cloud: &'static Cloud, stage: &Stage) -> Self {
        let mut sandbox = Sandbox::new();
        let devcloud = (cloud.start)(&mut sandbox, SPEED);
        devcloud.goes_wrong(stage.script);
        let azurite = azurite::start();
        let line = Line::start(devcloud.endpoint.rsplit(':').next().unwrap().parse().unwrap(), azurite.port);
        let lead = |text: &str, port: u16| text.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{}", line.port));
        for (_, value) in &mut sandbox.variables {
            *value = lead(value.to_str().unwrap(), line.cloud).into();
        }
        sandbox.variables.push(("FTCTL_STORE".into(), lead(&azurite.container(), azurite.port).into()));
        sandbox.variables.push(("AZURE_STORAGE_KEY".into(), azurite::KEY.into()));
        (cloud.job)(&sandbox);
        (stage.change)(&sandbox.path("job.toml"));
        Self { cloud, sandbox, devcloud, line, _azurite: azurite }
    }

    /// Runs the stage, to its end or to this death.
    fn play(&self, stage: &Stage, death: Option<(Which, When)>) -> ExitStatus {
        for command in stage.before {
            self.sandbox.ok(command);
        }
        let mut child = {
            // No request is numbered before its sender is known.
            let mut watched = self.line.watched.lock().unwrap();
            let mut command = self.sandbox.command(stage.command);
            let said = fs::File::create(self.sandbox.path("said")).unwrap();
            let child = command.stdout(Stdio::null()).stderr(said).spawn().unwrap();
            *watched = Watched { victim: Some(child.id()), death, requests: Vec::new() };
            child
        };
        let status = child.wait().unwrap();
        self.line.watched.lock().unwrap().death = None;
        status
    }

    /// Whatever happened, no machine was made twice, and all together cost what was allowed.
    fn once_and_within_the_ceiling(&self, what: &str) {
        let made = (self.cloud.made)(&self.devcloud);
        assert!(made.windows(2).all(|pair| pair[0] != pair[1]), "{what}: made twice: {made:?}");
        let bill = self.devcloud.ask("GET", "bill", "")["total"].as_str().unwrap().trim_end_matches("USD").parse::<f64>().unwrap();
        assert!(bill <= self.cloud.max_cost, "{what}: cost {bill}");
    }

    fn go_on(&self, stage: &Stage, then: Then, what: &str, expected: &Files) {
        match then {
            Then::Again => {
                self.sandbox.ok(stage.command);
                assert!(
                    !stage.succeeds || self.sandbox.results("job") == *expected,
                    "{what}: other bytes than the undisturbed job's"
                );
            }
            Then::Down => self.destroy_elsewhere(),
            Then::Nothing => {
                self.devcloud.ask("POST", &format!("skip?seconds={}", TTL + self.cloud.rest), "");
                assert!(self.devcloud.nothing_bills(), "{what}: {:?}", self.devcloud.machines());
                self.destroy_elsewhere();
            }
        }
        assert_eq!((self.cloud.there)(&self.devcloud), [""; 0], "{what}");
        self.once_and_within_the_ceiling(what);
    }

    fn destroy_elsewhere(&self) {
        let mut other = Sandbox::new();
        other.variables.clone_from(&self.sandbox.variables);
        other.variables.retain(|(name, _)| name != "FTCTL_STORE");
        other.ok(&["prune", "--everybody", "-y"]);
        assert!(self.devcloud.nothing_bills(), "{:?}", self.devcloud.machines());
    }
}

type Files = Vec<(String, Vec<u8>)>;

impl Stage {
    /// The requests of an undisturbed life, and its results.
    fn undisturbed(&self, cloud: &'static Cloud) -> (Vec<String>, Files) {
        let place = Place::new(cloud, self);
        let ended = place.play(self, None);
        assert!(ended.success(), "{:?}: {}", self.command, fs::read_to_string(place.sandbox.path("said")).unwrap());
        let requests = place.line.watched.lock().unwrap().requests.clone();
        assert_eq!((cloud.there)(&place.devcloud), [""; 0]);
        place.once_and_within_the_ceiling("the undisturbed life");
        assert_eq!((cloud.made)(&place.devcloud).len(), self.machines, "{:?}", self.command);
        (requests, if self.succeeds { place.sandbox.results("job") } else { Files::new() })
    }

    /// The deaths that are played, each with the event after it.
    fn deaths(cloud: &Cloud, requests: &[String]) -> Vec<(usize, When, Then)> {
        let wish = std::env::var(cloud.wish).unwrap_or_default();
        let all = wish == "all";
        let sample = if all { 1 } else { wish.parse().unwrap_or(cloud.sample) };
        let is_of_a_change = |name: &str| changes_the_cloud(name) || name.ends_with("/wait");
        let worth = |index: usize| is_of_a_change(&requests[index]) || index.is_multiple_of(sample);
        let deaths =
            (0..requests.len()).filter(|index| worth(*index)).flat_map(|index| [(index, When::Before), (index, When::After)]);
        let turn = |(number, (index, when))| {
            let ways = if all { &THEN[..] } else { std::slice::from_ref(&THEN[number % THEN.len()]) };
            ways.iter().map(move |then| (index, when, *then))
        };
        deaths.enumerate().flat_map(turn).collect()
    }

    /// Plays the stage on this cloud, once for each death.
    pub fn kill_everywhere(&self, cloud: &'static Cloud) {
        let (requests, expected) = self.undisturbed(cloud);
        let (deaths, next) = (Self::deaths(cloud, &requests), AtomicUsize::new(0));
        let (late, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some((index, when, then)) = deaths.get(next.fetch_add(1, Ordering::Relaxed)) {
                let death = which(&requests, *index);
                let what = format!("{:?} killed {when:?} {death:?}, then {then:?}", self.command);
                let dies = |_| {
                    let place = Place::new(cloud, self);
                    let ended = place.play(self, Some((death.clone(), *when)));
                    assert!(ended.success() || ended.signal() == Some(9), "{what}");
                    place.go_on(self, *then, &what, &expected);
                    !ended.success()
                };
                if !(0..TRIES).any(dies) {
                    late.fetch_add(1, Ordering::Relaxed);
                    missed.lock().unwrap().extend(comes_always(&requests, *index).then_some(what));
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(work);
            }
        });
        let (deaths, late, missed) = (deaths.len(), late.into_inner(), missed.into_inner().unwrap());
        let changing = (0..requests.len()).filter(|index| comes_always(&requests, *index)).count();
        // The last polls are not always reached, and of the requests that change something hardly one.
        assert!(
            late * 4 <= deaths && missed.len() * 10 <= 2 * changing,
            "{late} of {deaths} deaths did not come; around {changing} requests that change something: {missed:#?}"
        );
        assert!(changing > 0, "{:?} changes nothing in the cloud", self.command);
        println!("{:?}: {} requests, of which {changing} change the cloud; {} deaths", self.command, requests.len(), deaths - late);
    }
}
