import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.triggers.EventTimeTrigger;
import org.apache.flink.streaming.api.windowing.triggers.PurgingTrigger;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * Windows of Flink's over given rows, with a watermark behind each row: the greatest time so far less a delay and one.
 *
 * Standard input: for each case a line "case KIND SIZE SLIDE OFFSET DELAY LATENESS PURGE", times in milliseconds, then a
 * line "TIME KEY VALUE" for each row.  Standard output: lines "CASE r KEY START END COUNT SUM", one for each result, and
 * "CASE l KEY TIME VALUE", one for each late row.
 */
public class FlinkWindows {
  static final ConcurrentLinkedQueue<String> LINES = new ConcurrentLinkedQueue<>();
  static final int CASES_IN_A_JOB = 40;

  static class EachRow implements WatermarkGenerator<Tuple3<Long, String, Long>> {
    final long delay;
    long greatest = Long.MIN_VALUE;
    EachRow(long delay) { this.delay = delay; }
    @Override public void onEvent(Tuple3<Long, String, Long> row, long time, WatermarkOutput output) {
      greatest = Math.max(greatest, time);
      output.emitWatermark(new Watermark(greatest - delay - 1));
    }
    @Override public void onPeriodicEmit(WatermarkOutput output) {}
  }

  static class Sums extends ProcessWindowFunction<Tuple3<Long, String, Long>, String, String, TimeWindow> {
    final int number;
    Sums(int number) { this.number = number; }
    @Override public void process(
        String key, Context context, Iterable<Tuple3<Long, String, Long>> rows, Collector<String> out) {
      long count = 0, sum = 0;
      for (Tuple3<Long, String, Long> row : rows) { count++; sum += row.f2; }
      TimeWindow window = context.window();
      out.collect(number + " r " + key + " " + window.getStart() + " " + window.getEnd() + " " + count + " " + sum);
    }
  }

  static WindowAssigner<Object, TimeWindow> assigner(String[] words) {
    Duration size = Duration.ofMillis(Long.parseLong(words[2]));
    Duration slide = Duration.ofMillis(Long.parseLong(words[3]));
    Duration offset = Duration.ofMillis(Long.parseLong(words[4]));
    switch (words[1]) {
      case "tumbling": return TumblingEventTimeWindows.of(size, offset);
      case "sliding": return SlidingEventTimeWindows.of(size, slide, offset);
      default: return EventTimeSessionWindows.withGap(size);
    }
  }

  static void add(StreamExecutionEnvironment env, int number, String[] words, List<Tuple3<Long, String, Long>> rows) {
    long delay = Long.parseLong(words[5]);
    OutputTag<Tuple3<Long, String, Long>> late =
        new OutputTag<>("late", Types.TUPLE(Types.LONG, Types.STRING, Types.LONG));
    SingleOutputStreamOperator<String> results = env
        .fromData(rows, Types.TUPLE(Types.LONG, Types.STRING, Types.LONG))
        .assignTimestampsAndWatermarks(
            WatermarkStrategy.<Tuple3<Long, String, Long>>forGenerator(context -> new EachRow(delay))
                .withTimestampAssigner((row, before) -> row.f0))
        .keyBy(row -> row.f1, Types.STRING)
        .window(assigner(words))
        .trigger(words[7].equals("1") ? PurgingTrigger.of(EventTimeTrigger.create()) : EventTimeTrigger.create())
        .allowedLateness(Duration.ofMillis(Long.parseLong(words[6])))
        .sideOutputLateData(late)
        .process(new Sums(number), Types.STRING);
    results.map(line -> { LINES.add(line); return line; }, Types.STRING).sinkTo(new DiscardingSink<>());
    results.getSideOutput(late)
        .map(row -> { String line = number + " l " + row.f1 + " " + row.f0 + " " + row.f2; LINES.add(line); return line; },
            Types.STRING)
        .sinkTo(new DiscardingSink<>());
  }

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    List<String[]> cases = new ArrayList<>();
    List<List<Tuple3<Long, String, Long>>> rows = new ArrayList<>();
    for (String line; (line = in.readLine()) != null;) {
      String[] words = line.split(" ");
      if (words[0].equals("case")) {
        cases.add(words);
        rows.add(new ArrayList<>());
      } else {
        rows.get(rows.size() - 1).add(Tuple3.of(Long.parseLong(words[0]), words[1], Long.parseLong(words[2])));
      }
    }
    for (int begin = 0; begin < cases.size(); begin += CASES_IN_A_JOB) {
      StreamExecutionEnvironment env = StreamExecutionEnvironment.createLocalEnvironment(1);
      for (int number = begin; number < Math.min(begin + CASES_IN_A_JOB, cases.size()); number++) {
        add(env, number, cases.get(number), rows.get(number));
      }
      env.execute();
    }
    for (String line : LINES) System.out.println(line);
  }
}
