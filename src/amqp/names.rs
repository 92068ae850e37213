//! Every broker name, made from the prefix in one place.

/// The names of exchanges and queues under one prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    prefix: String,
}

impl Names {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// Direct exchange to which each job is published.
    pub fn jobs(&self) -> String {
        self.of("jobs")
    }

    /// Fanout exchange and queue for what no job queue took: the alternate exchange of [`Self::jobs`].
    pub fn unrouted(&self) -> String {
        self.of("unrouted")
    }

    /// Fanout exchange and queue for dead letters.
    pub fn dead(&self) -> String {
        self.of("dead")
    }

    /// Topic exchange and queue for consumers' reports.
    pub fn outcomes(&self) -> String {
        self.of("outcomes")
    }

    /// Topic exchange for untracked listeners.
    pub fn events(&self) -> String {
        self.of("events")
    }

    /// Queue of a subscription's fresh jobs.
    pub fn queue(&self, subscription: &str) -> String {
        self.of(subscription)
    }

    /// Queue of a subscription's old trouble.
    pub fn slow_queue(&self, subscription: &str) -> String {
        self.of(&slow_key(subscription))
    }

    fn of(&self, what: &str) -> String {
        format!("{}.{what}", self.prefix)
    }
}

/// Routing key of a subscription's slow lane; that of the fresh lane is its bare name.
pub fn slow_key(subscription: &str) -> String {
    format!("{subscription}.slow")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_prefix() {
        let names = Names::new("makbuz");
        assert_eq!(names.jobs(), "makbuz.jobs");
        assert_eq!(names.queue("billing"), "makbuz.billing");
        assert_eq!(names.slow_queue("billing"), "makbuz.billing.slow");
        assert_eq!(Names::new("b2").unrouted(), "b2.unrouted");
    }
}
