//! Fair shares: what each tenant was served, in tokens run.
//!
//! The tenant that was served least is next (a virtual token counter as in Sheng et al., "Fairness in Serving Large Language
//! Models", OSDI 2024). Whoever had nothing waiting starts from where the others are: idle time is not saved up.

use std::collections::HashMap;

use super::TenantId;

/// Place of an account.
pub(super) type AccountIndex = u32;

/// So many accounts without sequences are kept without looking.
const FEW_ACCOUNTS: usize = 64;
/// From so many accounts on, all without sequences are dropped.
const MAX_ACCOUNTS: usize = 4_096;

/// What one tenant has here, for those who decide whether it may have more.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TenantLoad {
    /// Its sequences in the queue.
    pub waiting: u32,
    /// Its sequences in a slot.
    pub running: u32,
    /// Tokens, prompt and output, that all of its sequences may reach that are not finished.
    pub max_tokens: u64,
}

#[derive(Debug, Default, Clone, Copy)]
struct Account {
    served: u64,
    /// Sequences that are not finished.
    sequences: u32,
    load: TenantLoad,
}

/// The accounts of all tenants that have sequences, and of those that were served more than the others when they left.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    accounts: Vec<Account>,
    vacant: Vec<AccountIndex>,
    by_id: HashMap<TenantId, AccountIndex>,
    /// Accounts with sequences.
    active: usize,
    /// Where those are who are served now.
    level: u64,
}

impl Tenants {
    /// A sequence of a tenant comes that may reach so many tokens.
    pub(super) fn join(&mut self, id: TenantId, max_tokens: u64) -> AccountIndex {
        let index = match self.by_id.get(&id) {
            Some(&index) => index,
            None => {
                self.forget_settled();
                let index = self.vacant.pop().unwrap_or_else(|| {
                    self.accounts.push(Account::default());
                    (self.accounts.len() - 1) as AccountIndex
                });
                self.accounts[index as usize] = Account::default();
                self.by_id.insert(id, index);
                index
            }
        };
        let account = &mut self.accounts[index as usize];
        self.active += usize::from(account.sequences == 0);
        account.sequences += 1;
        account.load.max_tokens += max_tokens;
        index
    }

    /// A sequence is finished, that could have reached so many tokens.
    pub(super) fn leave(&mut self, index: AccountIndex, max_tokens: u64) {
        let account = &mut self.accounts[index as usize];
        account.sequences -= 1;
        account.load.max_tokens -= max_tokens;
        self.active -= usize::from(account.sequences == 0);
    }

    /// Drops idle accounts that would start from the level anyhow, where there are very many the others too.
    fn forget_settled(&mut self) {
        let (accounts, level, vacant) = (&self.accounts, self.level, &mut self.vacant);
        let many = self.by_id.len() >= MAX_ACCOUNTS;
        if self.by_id.len() < 2 * self.active + FEW_ACCOUNTS {
            return;
        }
        self.by_id.retain(|_, &mut index| {
            let account = accounts[index as usize];
            let kept = account.sequences > 0 || (account.served > level && !many);
            if !kept {
                vacant.push(index);
            }
            kept
        });
    }

    /// A sequence begins to wait.
    pub(super) fn queue(&mut self, index: AccountIndex) {
        let account = &mut self.accounts[index as usize];
        if account.load.waiting == 0 {
            account.served = account.served.max(self.level);
        }
        account.load.waiting += 1;
    }

    /// A sequence waits no more.
    pub(super) fn unqueue(&mut self, index: AccountIndex) {
        self.accounts[index as usize].load.waiting -= 1;
    }

    /// A sequence takes a seat: its tenant was the one that was served least.
    pub(super) fn seat(&mut self, index: AccountIndex) {
        let account = &mut self.accounts[index as usize];
        account.load.running += 1;
        self.level = self.level.max(account.served);
    }

    /// A sequence leaves its seat.
    pub(super) fn unseat(&mut self, index: AccountIndex) {
        self.accounts[index as usize].load.running -= 1;
    }

    /// Tokens are run.
    pub(super) fn charge(&mut self, index: AccountIndex, tokens: u32) {
        self.accounts[index as usize].served += u64::from(tokens);
    }

    /// What a tenant was served.
    pub(super) fn served(&self, id: TenantId) -> u64 {
        self.by_id.get(&id).map_or(0, |&index| self.accounts[index as usize].served)
    }

    /// What a tenant has here.
    pub(super) fn load(&self, id: TenantId) -> TenantLoad {
        self.by_id.get(&id).map_or_else(TenantLoad::default, |&index| self.accounts[index as usize].load)
    }

    /// Accounts there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Sequences of all tenants, and what all have here together.
    pub(super) fn totals(&self) -> (usize, TenantLoad) {
        self.by_id.values().fold((0, TenantLoad::default()), |(sequences, sum), &index| {
            let Account { sequences: own, load, .. } = self.accounts[index as usize];
            let (waiting, running) = (sum.waiting + load.waiting, sum.running + load.running);
            (sequences + own as usize, TenantLoad { waiting, running, max_tokens: sum.max_tokens + load.max_tokens })
        })
    }
}
