package pinion;

import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.io.FileInputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Executors;

/**
 * Debezium's embedded engine with the properties of a file; prints each event on a line, as topic, tab, key, tab, value.
 * It ends in order when its input ends.
 */
public final class Consumer {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private static void deliver(List<ChangeEvent<String, String>> events, DebeziumEngine.RecordCommitter<ChangeEvent<String, String>> committer) throws InterruptedException {
        for (var event : events) {
            OUT.print(event.destination() + "\t" + event.key() + "\t" + event.value() + "\n");
            // Printed before the offset is kept: what is killed between the two is delivered again, never lost.
            OUT.flush();
            committer.markProcessed(event);
        }
        committer.markBatchFinished();
    }

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        try (var file = new FileInputStream(args[0])) {
            properties.load(file);
        }
        DebeziumEngine<ChangeEvent<String, String>> engine = DebeziumEngine.create(Json.class).using(properties).notifying(Consumer::deliver)
            .using((success, message, error) -> {
                System.err.println("ended: " + success + " " + message);
                if (error != null) error.printStackTrace();
                if (!success) Runtime.getRuntime().halt(1);
            }).build();
        var executor = Executors.newSingleThreadExecutor();
        executor.execute(engine);
        while (System.in.read() >= 0) {}
        engine.close();
        executor.shutdown();
        System.exit(0);
    }
}
