"""Event tables to a timeline: steps, links, layers, phases, work, host activity."""
