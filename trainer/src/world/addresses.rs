//! By which of its addresses the others reach this machine.

use std::ffi::{CStr, c_int};
use std::io::Error;
use std::iter::successors;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::ptr::null_mut;

use super::environment::Place;
use crate::error::Failure;

/// The name of the interface towards the place where processes of several machines meet, as the environment describes it. None
/// where one machine has them all. (What is wrong is said when they meet.)
pub fn interface(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let place = Place::read(variable).ok().flatten().filter(|place| place.beside < place.size)?;
    interface_of(own_address(&place.host, place.port).ok()?)
}

fn interface_of(address: IpAddr) -> Option<String> {
    let mut first = null_mut();
    // SAFETY: only the place is written.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return None;
    }
    // SAFETY: the list stays until it is freed.
    let mut all = successors(unsafe { first.as_ref() }, |one| unsafe { one.ifa_next.as_ref() });
    let named = all.find(|one| address_of(one) == Some(address));
    // SAFETY: a name is text that ends with a zero.
    let name = named.map(|one| unsafe { CStr::from_ptr(one.ifa_name) }.to_string_lossy().into_owned());
    // SAFETY: nothing of the list is used from here on.
    unsafe { libc::freeifaddrs(first) };
    name
}

fn address_of(one: &libc::ifaddrs) -> Option<IpAddr> {
    let address = one.ifa_addr;
    // SAFETY: an address is null or begins with its family, which says what it is.
    match c_int::from(unsafe { address.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: as above.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// The address of this machine from which packets go where the processes meet: the others reach it there.
pub(super) fn own_address(host: &str, port: u16) -> Result<IpAddr, Failure> {
    let found = || {
        let there = (host, port).to_socket_addrs()?.next().ok_or_else(|| Error::other("it has no address"))?;
        let any: SocketAddr = if there.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 8], 0).into() };
        let socket = UdpSocket::bind(any)?;
        socket.connect(there)?;
        Ok(socket.local_addr()?.ip())
    };
    found().map_err(|error: Error| Failure::other(format!("there is no way to MASTER_ADDR = {host}: {error}")))
}

/// Refuses that some are reached by an address that only their own machine knows.
pub(super) fn check_addresses(addresses: &[String]) -> Result<(), Failure> {
    let is_loopback = |address: &String| address.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let (Some(own), true) = (addresses.iter().position(is_loopback), !addresses.iter().all(is_loopback)) else { return Ok(()) };
    Err(Failure::input(format!(
        "rank {own} has only the address {} towards MASTER_ADDR, which other machines do not reach; set MASTER_ADDR to an address of \
         its network",
        addresses[own]
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_for_processes_of_one_machine() {
        let check = |addresses: &[&str]| check_addresses(&addresses.iter().map(|&address| address.to_owned()).collect::<Vec<_>>());
        assert!(check(&["127.0.0.1", "127.0.0.1"]).is_ok() && check(&["10.77.0.1", "10.77.0.2"]).is_ok());
        let failure = check(&["127.0.1.1", "10.77.0.2"]).unwrap_err();
        assert!(failure.to_string().starts_with("rank 0 has only the address 127.0.1.1"), "{failure}");
        assert_eq!(failure.code(), 2);
    }

    #[test]
    fn the_way_to_this_machine_is_by_loopback() {
        assert!(own_address("127.0.0.1", 29500).unwrap().is_loopback());
        assert!(own_address("no such host", 29500).unwrap_err().to_string().contains("no such host"));
    }

    #[test]
    fn an_interface_is_named_where_there_are_several_machines() {
        let found = |beside: &str, host: &str| {
            interface(|name| {
                let all = [
                    ("WORLD_SIZE", "4"),
                    ("RANK", "1"),
                    ("LOCAL_WORLD_SIZE", beside),
                    ("MASTER_ADDR", host),
                    ("MASTER_PORT", "29500"),
                ];
                all.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let loopback = if cfg!(target_os = "macos") { "lo0" } else { "lo" };
        assert_eq!(found("2", "127.0.0.1").as_deref(), Some(loopback), "the machines of a rehearsal are one");
        assert_eq!([found("4", "127.0.0.1"), found("2", "no such host"), found("2", "")], [None, None, None]);
        assert_eq!(interface_of([192, 0, 2, 1].into()), None, "no machine has this address");
    }
}
