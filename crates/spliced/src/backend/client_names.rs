//! The names that clients ask for, in /etc/hosts and in DNS.
//!
//! getaddrinfo(3) blocks a thread that nothing can call back. So a few names whose servers are silent would keep
//! all others waiting, whatever becomes of the clients that asked for them. Here a question is a task, which ends
//! with its client; and what /etc/hosts has waits for nobody.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use splice_route::Prefix;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::socket_address::is_localhost;

/// How many questions to name servers wait for an answer at once. Each has up to four sockets: two families, two
/// servers.
const QUESTIONS: usize = 256;

/// How many of them one client may have, so that others have theirs.
const QUESTIONS_PER_CLIENT: usize = 32;

/// The bits of an IPv6 address that make one client: a customer has that network (RFC 6177).
const IPV6_CLIENT_BITS: u8 = 64;

/// How long /etc/hosts and /etc/resolv.conf are taken for what they were.
const KEPT: Duration = Duration::from_secs(5);

pub(super) struct ClientNames {
    sources: Mutex<Option<Arc<Sources>>>,
    questions: Arc<Semaphore>,
    /// The shares of the clients that have questions.
    shares: Mutex<HashMap<Option<Prefix>, Weak<Semaphore>>>,
}

/// As /etc/hosts and /etc/resolv.conf were.
struct Sources {
    read_at: Instant,
    hosts: Hosts,
    /// Or why there is none.
    servers: Result<TokioResolver, String>,
}

impl Default for ClientNames {
    fn default() -> Self {
        Self {
            sources: Mutex::default(),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            shares: Mutex::default(),
        }
    }
}

impl ClientNames {
    /// The addresses of `name`, for `client`.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) async fn addresses(
        &self,
        client: Option<IpAddr>,
        name: &str,
    ) -> Result<Vec<IpAddr>, String> {
        if is_localhost(name) {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let sources = self.sources();
        let found = sources.of_hosts(name)?;
        if !found.is_empty() {
            return Ok(found);
        }
        let servers = sources.servers.as_ref().map_err(Clone::clone)?;
        let _permits = self.permits(client).await;
        match servers.lookup_ip(name).await {
            Ok(found) => Ok(found.iter().collect()),
            Err(error) if error.is_no_records_found() => Err("it has no address".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn sources(&self) -> Arc<Sources> {
        let mut kept = lock(&self.sources);
        match &*kept {
            Some(sources) if sources.read_at.elapsed() < KEPT => Arc::clone(sources),
            _ => Arc::clone(kept.insert(Arc::new(Sources::read()))),
        }
    }

    /// First one of the client's, so that no client has more of all.
    async fn permits(&self, client: Option<IpAddr>) -> [Option<OwnedSemaphorePermit>; 2] {
        let share = self.share(client);
        // They are never closed.
        let of_client = share.acquire_owned().await.ok();
        let of_all = Arc::clone(&self.questions).acquire_owned().await.ok();
        [of_client, of_all]
    }

    fn share(&self, client: Option<IpAddr>) -> Arc<Semaphore> {
        let client = client.map(|address| match address.to_canonical() {
            ip @ IpAddr::V4(_) => Prefix::of(ip, u8::MAX),
            ip @ IpAddr::V6(_) => Prefix::of(ip, IPV6_CLIENT_BITS),
        });
        let mut shares = lock(&self.shares);
        if let Some(share) = shares.get(&client).and_then(Weak::upgrade) {
            return share;
        }
        // As many are left as there are questions, at most.
        if shares.len() > 2 * QUESTIONS {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Semaphore::new(QUESTIONS_PER_CLIENT));
        shares.insert(client, Arc::downgrade(&share));
        share
    }
}

impl Sources {
    fn read() -> Self {
        let servers = TokioResolver::builder_tokio().and_then(|mut builder| {
            builder.options_mut().max_active_requests = QUESTIONS;
            builder.build()
        });
        Self {
            read_at: Instant::now(),
            // Most hosts have none of their own in it.
            hosts: Hosts::from_system().unwrap_or_default(),
            servers: servers.map_err(|error| format!("/etc/resolv.conf cannot be used: {error}")),
        }
    }

    fn of_hosts(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        let name = Name::from_ascii(name).map_err(|error| error.to_string())?;
        let found = [RecordType::A, RecordType::AAAA].map(|kind| {
            let query = Query::query(name.clone(), kind);
            self.hosts.lookup_static_host(&query)
        });
        let records = found.iter().flatten().flat_map(|found| found.answers());
        Ok(records.filter_map(|record| record.data.ip_addr()).collect())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot leave either half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
