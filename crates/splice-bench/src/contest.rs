//! Interleaved rounds: in each round every contestant is measured once on every question, so that a
//! disturbance of the machine hits all of them alike.

mod description;
mod quantity;
pub(crate) mod question;
pub(crate) mod tally;

use std::path::Path;

use anyhow::{Result, ensure};

use self::question::{Extents, Question};
use self::tally::Tally;
use crate::contestant::Contestant;
use crate::entrant::{Absent, Entrant};
use crate::progress::Progress;
use crate::segment_counts::SegmentCounts;
use crate::site::Site;
use crate::workload::transfer;

/// Who is measured on what.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) questions: Vec<Question>,
    pub(crate) rounds: u32,
    pub(crate) extents: Extents,
    /// Bytes each way whose hashes are compared before anything is timed.
    pub(crate) hashed_bytes: u64,
}

impl Plan {
    /// The largest number of measurements that the plan can take.
    fn steps(&self) -> u64 {
        let each = |question: &Question| {
            let contestants = self.contestants.iter();
            let asked = contestants.filter(|one| question.is_for(**one)).count() as u64;
            asked * u64::from(question.times(self.rounds, &self.extents))
        };
        self.questions.iter().map(each).sum()
    }

    /// Those that any question is for.
    fn asked(&self) -> Vec<Contestant> {
        let is_asked = |one: &Contestant| self.questions.iter().any(|asks| asks.is_for(*one));
        self.contestants.iter().copied().filter(is_asked).collect()
    }
}

/// What the rounds have found.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Those that took part.
    pub(crate) contestants: Vec<Contestant>,
    pub(crate) absent: Vec<Absent>,
    /// Those whose bytes did not arrive as they were sent, with the reason.
    pub(crate) unsound: Vec<Absent>,
    pub(crate) tallies: Vec<Tally>,
}

impl Outcome {
    /// Whether every byte arrived and no measurement failed.
    pub(crate) fn sound(&self) -> bool {
        self.unsound.is_empty() && !self.tallies.iter().any(Tally::has_failed)
    }

    /// The answers to `question`.
    pub(crate) fn tally(&self, question: Question) -> Option<&Tally> {
        self.tallies.iter().find(|tally| tally.question == question)
    }
}

/// Runs `plan`. A signal ends it early, with what has been measured by then.
pub(crate) fn run(site: &Site, plan: &Plan, spliced: &Path) -> Result<Outcome> {
    let (entrants, absent) = Entrant::start_all(site, spliced, &plan.asked())?;
    let contestants: Vec<Contestant> = entrants.iter().map(|one| one.contestant).collect();
    let tally = |&question: &Question| Tally::new(question, &contestants);
    let mut tallies: Vec<Tally> = plan.questions.iter().map(tally).collect();
    let mut contest = Contest {
        site,
        plan,
        spliced,
        entrants,
        progress: Progress::new(plan.steps()),
    };
    let unsound = contest.compare_hashes()?;
    contest.play_rounds(&mut tallies)?;
    contest.ask_fresh_relays(&mut tallies)?;
    Ok(Outcome {
        contestants,
        absent,
        unsound,
        tallies,
    })
}

/// A plan that is being carried out.
struct Contest<'a> {
    site: &'a Site,
    plan: &'a Plan,
    spliced: &'a Path,
    entrants: Vec<Entrant>,
    progress: Progress,
}

impl Contest<'_> {
    /// Sends random bytes both ways through everyone. Returns those that did not deliver them.
    fn compare_hashes(&mut self) -> Result<Vec<Absent>> {
        let mut unsound = Vec::new();
        let hashed_bytes = self.plan.hashed_bytes;
        self.progress.part("comparing hashes".into());
        for entrant in &mut self.entrants {
            if netlab::interrupted().is_some() {
                break;
            }
            let checked = entrant.in_its_turn(self.site, self.spliced, |entrant| {
                let same = transfer::check(&entrant.connect(self.site)?, hashed_bytes)?;
                ensure!(same, "the bytes that arrived are not those sent");
                Ok(())
            });
            if let Err(error) = checked {
                let (name, why) = (entrant.contestant.name(), format!("{error:#}"));
                self.progress.say(&format!("{name} FAILED: {why}"));
                unsound.push((entrant.contestant, why));
                recover(self.site, self.spliced, entrant)?;
            }
        }
        Ok(unsound)
    }

    fn play_rounds(&mut self, tallies: &mut [Tally]) -> Result<()> {
        let count = self.entrants.len();
        let rounds = self.plan.rounds;
        for round in 0..rounds as usize {
            self.progress
                .part(format!("round {} of {rounds}", round + 1));
            let in_rounds = tallies
                .iter_mut()
                .filter(|tally| tally.question.in_rounds());
            for (number, tally) in in_rounds.enumerate() {
                for position in 0..count {
                    if netlab::interrupted().is_some() {
                        return Ok(());
                    }
                    // The first may find the machine different from the others: each is first in turn.
                    self.ask((round + number + position) % count, tally)?;
                }
            }
        }
        Ok(())
    }

    /// The questions about memory, each put to a relay that has just been started.
    fn ask_fresh_relays(&mut self, tallies: &mut [Tally]) -> Result<()> {
        let count = self.entrants.len();
        let afterwards = tallies
            .iter_mut()
            .filter(|tally| !tally.question.in_rounds());
        for tally in afterwards {
            self.progress.part(tally.question.family().into());
            for turn in 0..tally.question.times(self.plan.rounds, &self.plan.extents) as usize {
                for position in 0..count {
                    if netlab::interrupted().is_some() {
                        return Ok(());
                    }
                    let index = (turn + position) % count;
                    let restarted = self.entrants[index].restart(self.site, self.spliced);
                    if let Err(error) = restarted {
                        tally.fail(index, format!("{error:#}"));
                    }
                    self.ask(index, tally)?;
                }
            }
        }
        Ok(())
    }

    /// Asks one contestant once. A failure is noted; the other measurements go on.
    fn ask(&mut self, index: usize, tally: &mut Tally) -> Result<()> {
        let extents = &self.plan.extents;
        let entrant = &mut self.entrants[index];
        let (question, name) = (tally.question, entrant.contestant.name());
        if !question.is_for(entrant.contestant) {
            return Ok(());
        }
        self.progress.step(&format!("{}, {name}", question.id()));
        let most = entrant.contestant.most_connections();
        if question.connections(extents) > most {
            let why = format!("not measured with more than {most} connections");
            tally.fail_quietly(index, why);
        }
        let skipped = question.needs_relay() && entrant.relay.is_none();
        if !skipped && !tally.is_over_for(index) {
            let uses_segment = entrant.contestant.uses_segment();
            let mut grown = None;
            let answer = entrant.in_its_turn(self.site, self.spliced, |entrant| {
                // Others on the machine rarely relay meanwhile, and the contestants never.
                let before = uses_segment.then(SegmentCounts::now);
                let answer = question.ask(self.site, entrant, extents);
                if let Some(Ok(before)) = before
                    && let Ok(after) = SegmentCounts::now()
                {
                    grown = Some(after.since(&before));
                }
                answer
            });
            match answer {
                Ok(answer) => tally.add(index, answer),
                Err(error) => {
                    let why = format!("{error:#}");
                    let line = format!("{name} FAILED at {}: {why}", question.id());
                    self.progress.say(&line);
                    tally.fail(index, why);
                    recover(self.site, self.spliced, entrant)?;
                }
            }
            if let Some(grown) = grown {
                tally.count_segments(index, &grown);
            }
        }
        self.progress.done();
        Ok(())
    }
}

/// A failure may have left connections that nobody expects, and the relay in the middle of one.
fn recover(site: &Site, spliced: &Path, entrant: &mut Entrant) -> Result<()> {
    entrant.restart(site, spliced)?;
    site.drain()
}
