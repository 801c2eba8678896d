//! The processes of a run as the variables of `torchrun` describe them, which anything else may set too.

use std::str::FromStr;

use crate::error::Failure;

/// Where one process of several is, and where they meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub rank: usize,
    pub size: usize,
    /// Processes on this machine.
    pub beside: usize,
    /// This one's number among them.
    pub local: usize,
    /// The machine's number, where there are several.
    pub node: Option<usize>,
    /// Whether an agent sends what is written on this machine to the store.
    pub is_sent: bool,
    pub host: String,
    pub port: u16,
    /// Whether the others meet at this process.
    pub serves: bool,
    /// The number of an open socket that listens there already, left by the program that started this one: no other can have taken
    /// the port meanwhile. Absent: the process listens at the port itself.
    pub listener: Option<u16>,
    /// The beginning of keys in the store. It is another one each time that the processes are started.
    pub prefix: String,
}

impl Place {
    /// None where there is one process.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Failure> {
        let variables = Variables(variable);
        let Some(size) = variables.number("WORLD_SIZE")? else { return Ok(None) };
        let rank: Option<usize> = variables.number("RANK")?;
        if size == 0 {
            return Err(Failure::input("WORLD_SIZE must be at least 1, but is 0"));
        }
        if let Some(rank) = rank.filter(|rank| *rank >= size) {
            return Err(Failure::input(format!("RANK = {rank} is not one of WORLD_SIZE = {size} processes, which count from 0")));
        }
        if size == 1 {
            return Ok(None);
        }
        let rank = needed(size, "RANK", rank)?;
        let beside: usize = variables.number("LOCAL_WORLD_SIZE")?.unwrap_or(size).clamp(1, size);
        let local = variables.number("LOCAL_RANK")?.unwrap_or(rank % beside);
        let node = if beside < size { variables.number("GROUP_RANK")? } else { None };
        let is_sent = variables.text("FTCTL_RANGES").is_some();
        let host = needed(size, "MASTER_ADDR", variables.text("MASTER_ADDR"))?;
        let port = needed(size, "MASTER_PORT", variables.number("MASTER_PORT")?)?;
        // Then torchrun itself has a store there.
        let serves = rank == 0 && variables.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() != Some("True");
        let listener = variables.number("FTCTL_LISTENER")?.filter(|_| serves);
        let prefix = format!("ft-trainer/{}", variables.text("TORCHELASTIC_RESTART_COUNT").unwrap_or_default());
        Ok(Some(Self { rank, size, beside, local, node, is_sent, host, port, serves, listener, prefix }))
    }
}

struct Variables<F>(F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|text| !text.is_empty())
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>, Failure> {
        let number = |text: String| text.parse().map_err(|_| Failure::input(format!("{name} = {text:?} is not such a number")));
        self.text(name).map(number).transpose()
    }
}

fn needed<T>(size: usize, name: &str, value: Option<T>) -> Result<T, Failure> {
    let missing = || format!("WORLD_SIZE = {size}, and {name} is missing; set it as torchrun does, or start one process");
    value.ok_or_else(|| Failure::input(missing()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Place>, String> {
        let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Place::read(variable).map_err(|failure| {
            assert_eq!(failure.code(), 2);
            failure.to_string()
        })
    }

    const LOOP: [(&str, &str); 4] = [("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];

    #[test]
    fn one_process_needs_no_variables() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("WORLD_SIZE", "1"), ("RANK", "0")]), Ok(None));
        assert_eq!(read(&[("WORLD_SIZE", "1")]), Ok(None));
    }

    #[test]
    fn a_shell_loop_sets_four() {
        let place = read(&LOOP).unwrap().unwrap();
        assert_eq!((place.rank, place.size, place.beside, place.node, place.serves), (0, 2, 2, None, true));
        assert_eq!((place.host.as_str(), place.port, place.prefix.as_str()), ("127.0.0.1", 29500, "ft-trainer/"));
    }

    #[test]
    fn the_first_may_be_left_a_socket() {
        let listener = |rank| {
            let own = [LOOP[0], ("RANK", rank), LOOP[2], LOOP[3], ("FTCTL_LISTENER", "7")];
            read(&own).unwrap().unwrap().listener
        };
        assert_eq!([listener("0"), listener("1")], [Some(7), None]);
        let wrong = read(&[&LOOP[..], &[("FTCTL_LISTENER", "-1")]].concat()).unwrap_err();
        assert_eq!(wrong, "FTCTL_LISTENER = \"-1\" is not such a number");
    }

    #[test]
    fn torchrun_has_a_store_of_its_own_and_counts_starts() {
        let local = |more: &[(&str, &str)]| read(&[&LOOP[..], more].concat()).unwrap().unwrap().local;
        assert_eq!([local(&[]), local(&[("LOCAL_RANK", "1")])], [0, 1]);
        let more = [("LOCAL_WORLD_SIZE", "1"), ("GROUP_RANK", "3"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
        let place = read(&[&LOOP[..], &more, &[("TORCHELASTIC_RESTART_COUNT", "2")]].concat()).unwrap().unwrap();
        assert_eq!((place.beside, place.node, place.serves, place.prefix.as_str()), (1, Some(3), false, "ft-trainer/2"));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let cases: [(&[(&str, &str)], &str); 6] = [
            (&LOOP[..1], "WORLD_SIZE = 2, and RANK is missing; set it as torchrun does, or start one process"),
            (&LOOP[..3], "WORLD_SIZE = 2, and MASTER_PORT is missing; set it as torchrun does, or start one process"),
            (&[("WORLD_SIZE", "many")], "WORLD_SIZE = \"many\" is not such a number"),
            (&[("WORLD_SIZE", "2"), ("RANK", "2")], "RANK = 2 is not one of WORLD_SIZE = 2 processes, which count from 0"),
            (&[("WORLD_SIZE", "1"), ("RANK", "2")], "RANK = 2 is not one of WORLD_SIZE = 1 processes, which count from 0"),
            (&[("WORLD_SIZE", "0"), ("RANK", "2")], "WORLD_SIZE must be at least 1, but is 0"),
        ];
        for (variables, expected) in cases {
            assert_eq!(read(variables).unwrap_err(), expected);
        }
    }
}
