//! The names that clients ask for, in /etc/hosts and in DNS.
//!
//! getaddrinfo(3) blocks a thread that nothing can call back. So a few names whose servers are silent would keep
//! all others waiting, whatever becomes of the clients that asked for them. Here a question is a task, which ends
//! with its client; and what /etc/hosts has, or an answer that still holds, waits for nobody.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hickory_resolver::TokioResolver;
use hickory_resolver::net::{DnsError, NetError};
use splice_route::Prefix;

use super::hosts::Hosts;
use super::turns::Turns;
use super::{lock, resolver};
use crate::file_stamp::FileStamp;
use crate::race::Preference;
use crate::socket_address::{SocketAddress, is_localhost};

/// How many questions to name servers wait for an answer at once. Each has up to four sockets: two families, two
/// servers.
const QUESTIONS: usize = 256;

/// The bits of an IPv6 address that make one client: no site has a larger network (RFC 6177), and one with a smaller
/// one shares with its neighbours.
const IPV6_CLIENT_BITS: u8 = 48;

/// How long a file is taken for what it was before it is looked at again.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// How many answers are kept, and of how many addresses each: together they take some 10 MiB, whatever a client has in
/// a zone of its own.
const MOST_ANSWERS: usize = 8192;
const MOST_ADDRESSES: usize = 64;

/// However long an answer says that it holds: a mistake in a zone is to end on its own.
const MOST_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

const HOSTS: &str = "/etc/hosts";

pub(super) struct ClientNames {
    hosts: Followed<Hosts>,
    servers: Followed<Servers>,
    turns: Turns<Option<Prefix>>,
    preferences: Preferences,
}

/// Which of the addresses of a name and a port answer, where the first one does not.
#[derive(Default)]
struct Preferences(Mutex<HashMap<(String, u16), Preference>>);

/// The name servers of /etc/resolv.conf.
struct Servers {
    resolver: TokioResolver,
    answers: Answers,
}

/// Those that still hold. The resolver could keep answers, too, but does not tell those that it has from those for which
/// it has to ask; and it counts them, however long they are.
#[derive(Default)]
struct Answers(Mutex<HashMap<String, Kept>>);

/// The addresses of a name, or why there are none.
type Answer = Result<Vec<IpAddr>, String>;

struct Kept {
    answer: Answer,
    until: Instant,
}

impl Default for ClientNames {
    fn default() -> Self {
        Self {
            hosts: Followed::default(),
            servers: Followed::default(),
            turns: Turns::new(QUESTIONS),
            preferences: Preferences::default(),
        }
    }
}

impl ClientNames {
    /// The addresses of `name`, for `client`.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) async fn addresses(&self, client: Option<IpAddr>, name: &str) -> Answer {
        if is_localhost(name) {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let hosts = self.hosts.get(HOSTS, || Hosts::read(HOSTS))?;
        let found = hosts.addresses(name);
        if !found.is_empty() {
            return Ok(found.into());
        }
        let servers = self.servers.get(resolver::PATH, Servers::read)?;
        if let Some(answer) = servers.answers.get(name) {
            return answer;
        }
        let _turn = self.turns.take(client.map(network)).await;
        // Another client may have asked for it meanwhile.
        match servers.answers.get(name) {
            Some(answer) => answer,
            None => servers.ask(name).await,
        }
    }

    /// The addresses of `name` in the order in which to try them.
    pub(super) fn in_order(&self, name: &str, port: u16, found: &[IpAddr]) -> Vec<SocketAddr> {
        let with_port = |ip: &IpAddr| SocketAddress::Inet((*ip, port).into());
        let found: Vec<_> = found.iter().map(with_port).collect();
        let preference = self.preferences.get(name, port);
        let order = preference.order(&found, Instant::now());
        order.iter().filter_map(SocketAddress::inet).collect()
    }

    /// `address`, of those in the order `tried`, has answered.
    pub(super) fn answered(
        &self,
        name: &str,
        port: u16,
        address: &SocketAddress,
        tried: &[SocketAddress],
    ) {
        if tried.first() != Some(address) {
            let now = Instant::now();
            self.preferences.set(name, port, address, tried, now);
        }
    }
}

impl Preferences {
    fn get(&self, name: &str, port: u16) -> Preference {
        let preferences = lock(&self.0);
        let key = (name.to_ascii_lowercase(), port);
        preferences.get(&key).cloned().unwrap_or_default()
    }

    fn set(
        &self,
        name: &str,
        port: u16,
        address: &SocketAddress,
        tried: &[SocketAddress],
        now: Instant,
    ) {
        let mut preferences = lock(&self.0);
        if preferences.len() >= MOST_ANSWERS {
            preferences.retain(|_, preference| !preference.has_expired(now));
        }
        if preferences.len() >= MOST_ANSWERS {
            // They will be found out again.
            preferences.clear();
        }
        let key = (name.to_ascii_lowercase(), port);
        let preference = preferences.entry(key).or_default();
        preference.answered(address, tried, now);
    }
}

/// What makes a client: many addresses may be one's.
fn network(client: IpAddr) -> Prefix {
    match client.to_canonical() {
        ip @ IpAddr::V4(_) => Prefix::of(ip, u8::MAX),
        ip @ IpAddr::V6(_) => Prefix::of(ip, IPV6_CLIENT_BITS),
    }
}

/// What a file says, read again when the file has changed.
struct Followed<T>(Mutex<Option<Known<T>>>);

struct Known<T> {
    value: Arc<T>,
    /// `None` if it may have changed since it was read.
    stamp: Option<FileStamp>,
    looked_at: Instant,
}

impl<T> Default for Followed<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Followed<T> {
    /// What `read` makes of the file at `path`. A failure is not kept.
    fn get(&self, path: &str, read: impl FnOnce() -> Result<T, String>) -> Result<Arc<T>, String> {
        self.get_at(Instant::now(), path, read)
    }

    fn get_at(
        &self,
        now: Instant,
        path: &str,
        read: impl FnOnce() -> Result<T, String>,
    ) -> Result<Arc<T>, String> {
        let mut known = lock(&self.0);
        if let Some(known) = &*known
            && now.saturating_duration_since(known.looked_at) < LOOKED_AT_EVERY
        {
            return Ok(Arc::clone(&known.value));
        }
        // Before reading: a change in between has another stamp next time.
        let metadata = fs::metadata(path).ok();
        let stamp = metadata.map(|metadata| FileStamp::of(&metadata));
        if let Some(known) = &mut *known
            && stamp.is_some()
            && known.stamp == stamp
        {
            known.looked_at = now;
            return Ok(Arc::clone(&known.value));
        }
        let value = Arc::new(read()?);
        *known = Some(Known {
            value: Arc::clone(&value),
            stamp: stamp.filter(FileStamp::is_settled),
            looked_at: now,
        });
        Ok(value)
    }
}

impl Servers {
    fn read() -> Result<Self, String> {
        Ok(Self {
            resolver: resolver::new(|options| {
                options.max_active_requests = QUESTIONS;
                // They are here.
                options.cache_size = 0;
            })?,
            answers: Answers::default(),
        })
    }

    async fn ask(&self, name: &str) -> Answer {
        let now = Instant::now();
        let (answer, until) = match self.resolver.lookup_ip(name).await {
            Ok(found) => (Ok(found.iter().collect()), found.valid_until()),
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
                let ttl = none.negative_ttl.map_or(0, u64::from);
                let why = "it has no address".to_owned();
                (Err(why), now + Duration::from_secs(ttl))
            }
            Err(error) => return Err(resolver::why(&error)),
        };
        self.answers.keep(
            name,
            Kept {
                answer: answer.clone(),
                until: until.min(now + MOST_KEPT),
            },
        );
        answer
    }
}

impl Answers {
    fn get(&self, name: &str) -> Option<Answer> {
        let answers = lock(&self.0);
        let kept = answers.get(&name.to_ascii_lowercase())?;
        (kept.until > Instant::now()).then(|| kept.answer.clone())
    }

    fn keep(&self, name: &str, kept: Kept) {
        let now = Instant::now();
        let count = kept.answer.as_ref().map_or(0, Vec::len);
        if kept.until <= now || count > MOST_ADDRESSES {
            return;
        }
        let mut answers = lock(&self.0);
        if answers.len() >= MOST_ANSWERS {
            answers.retain(|_, kept| kept.until > now);
        }
        if answers.len() >= MOST_ANSWERS {
            // They will be asked for again.
            answers.clear();
        }
        answers.insert(name.to_ascii_lowercase(), kept);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use netlab::{Scratch, until};

    use super::*;

    #[test]
    fn an_ipv6_client_is_a_site() {
        let of = |text: &str| network(text.parse().expect(text));
        assert_eq!(of("2001:db8:0:1::1"), of("2001:db8:0:ff00::2"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:1:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn answers_are_kept_for_their_time_and_bounded() {
        let answers = Answers::default();
        let address = IpAddr::from([192, 0, 2, 1]);
        let keep = |name: &str, count, seconds| {
            let until = Instant::now() + Duration::from_secs(seconds);
            let answer = Ok(vec![address; count]);
            answers.keep(name, Kept { answer, until });
        };
        keep("a.test", 1, 3600);
        assert_eq!(answers.get("A.Test"), Some(Ok(vec![address])));
        keep("b.test", 1, 0);
        keep("c.test", MOST_ADDRESSES + 1, 3600);
        assert_eq!((answers.get("b.test"), answers.get("c.test")), (None, None));
        for number in 0..2 * MOST_ANSWERS {
            keep(&format!("{number}.test"), 1, 3600);
            assert!(lock(&answers.0).len() <= MOST_ANSWERS);
        }
    }

    #[test]
    fn a_file_is_read_when_it_has_changed_and_after_a_failure() {
        let scratch = Scratch::new("followed").expect("a directory");
        let path = scratch.write("file", "1").expect("written");
        let name = path.to_str().expect("a path");
        until("its stamp is settled", || {
            FileStamp::of(&fs::metadata(&path).expect("there")).is_settled()
        });
        let (followed, reads) = (Followed::<String>::default(), Cell::new(0));
        let mut now = Instant::now();
        let mut get = |read: &dyn Fn() -> Result<String, String>| {
            now += LOOKED_AT_EVERY;
            let counted = || {
                reads.set(reads.get() + 1);
                read()
            };
            followed
                .get_at(now, name, counted)
                .map(|value| value.to_string())
        };
        let read = || fs::read_to_string(name).map_err(|error| error.to_string());
        assert_eq!(get(&|| Err("no".into())), Err("no".into()));
        for _ in 0..3 {
            assert_eq!(get(&read), Ok("1".into()));
        }
        assert_eq!(reads.get(), 2);
        fs::write(&path, "2").expect("written");
        assert_eq!(get(&read), Ok("2".into()));
        // The same stamp may be another file for a while.
        fs::write(&path, "3").expect("written");
        assert_eq!(get(&read), Ok("3".into()));
        fs::remove_file(&path).expect("removed");
        assert!(get(&read).is_err());
    }
}
