//! The flows of a table by their cookies.
//!
//! How many flows have a cookie is always known. Which ones is kept from the first time on that somebody asks: most tables are
//! never asked, and to look at all flows each time would let one request after the other cost as much as the table is large.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use openflow::Cookie;

use super::Rule;

/// Most flows of a table that are looked at instead.
const FEW: usize = 256;

/// The flows of a table by their cookies.
#[derive(Default)]
pub(super) struct Cookies {
    counts: HashMap<Cookie, u32>,
    /// The flows by cookie and by their number in the listing.
    rules: Option<BTreeMap<(u64, u64), Arc<Rule>>>,
}

impl Cookies {
    /// Adds a rule that has its number in the listing.
    pub fn add(&mut self, rule: &Arc<Rule>) {
        *self.counts.entry(rule.cookie).or_insert(0) += 1;
        if let Some(rules) = &mut self.rules {
            rules.insert(place(rule), rule.clone());
        }
    }

    /// Removes a rule.
    pub fn remove(&mut self, rule: &Arc<Rule>) {
        if let Some(count) = self.counts.get_mut(&rule.cookie) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&rule.cookie);
            }
        }
        if let Some(rules) = &mut self.rules
            // One that has replaced it has its number.
            && rules.get(&place(rule)).is_some_and(|listed| Arc::ptr_eq(listed, rule))
        {
            rules.remove(&place(rule));
        }
    }

    /// How many rules have a cookie.
    pub fn count(&self, cookie: Cookie) -> u32 {
        self.counts.get(&cookie).copied().unwrap_or(0)
    }

    /// Some rules with a cookie, the oldest first; `all` are those of the table, so many.
    pub fn rules<'a>(
        &mut self,
        cookie: Cookie,
        most: usize,
        (len, all): (usize, impl Iterator<Item = &'a Arc<Rule>>),
    ) -> Vec<Arc<Rule>> {
        if self.count(cookie) == 0 {
            return Vec::new();
        }
        if self.rules.is_none() && len <= FEW {
            let mut rules: Vec<_> = all.filter(|rule| rule.cookie == cookie).cloned().collect();
            rules.sort_unstable_by_key(place);
            rules.truncate(most);
            return rules;
        }
        let rules = self.rules.get_or_insert_with(|| all.map(|rule| (place(rule), rule.clone())).collect());
        rules.range((cookie.0, 0)..=(cookie.0, u64::MAX)).take(most).map(|(_, rule)| rule.clone()).collect()
    }
}

fn place(rule: &Arc<Rule>) -> (u64, u64) {
    (rule.cookie.0, rule.number())
}
