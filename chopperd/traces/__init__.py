"""Reading Kineto traces into columns and laying them out as steps and device timelines."""
