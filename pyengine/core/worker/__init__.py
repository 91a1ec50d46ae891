"""The process that serves queues: it claims runs, drives their code, runs their steps and reports.

Lives here: everything that needs a lease. May not: the client; a worker knows no handle. Design: the logic
has no event loop and no connection. A part posts an event, `RunManager.apply` changes the run and returns
effects, and the dispatcher hands each effect to the part that performs it.

The way of a claimed run, to its first step:

1. turn_loop:TurnLoop.send takes a turn, because there is room
2. report_queue:ReportQueue.collect fills it
3. turn_sender:TurnSender.send sends it, and gets the run in the answer
4. turn_loop:TurnLoop.apply makes an event of the run
5. dispatcher:Dispatcher.post_all has it applied
6. run_manager:RunManager.apply finds the run unknown, or warm
7. run_driver:RunDriver.begin drives the coroutine by its journal
8. step_runner:StepRunner.start runs the body of its first step

The way of a step's result, from its end to the next advance:

1. step_runner:StepRunner._execute ends the body and posts `AttemptEnded`
2. dispatcher:Dispatcher.post has it applied
3. run_manager:RunManager.apply takes the attempt off its run
4. run_driver:RunDriver.outcome_came queues the run to be reported
5. report_queue:ReportQueue.collect takes its report into a turn
6. run_state:Live.take_report fills the slot of the report on its way
7. turn_sender:TurnSender.send sends the turn
8. turn_loop:TurnLoop.apply makes an event of the verdict
9. dispatcher:Dispatcher.post_all has it applied
10. run_driver:RunDriver.drive advances the coroutine by the recorded row
"""

from __future__ import annotations
